"""The documentation runs: every Python block, and every console block that is marked.

A comment before a block says what is done with it:

    <!-- run -->                        a console block: its `$` lines run in order, one folder for the whole page
    <!-- run: NAME until TEXT -->       a console block whose one command stays running as NAME once it has printed TEXT
    <!-- interrupt: NAME -->            with an empty line after it: Ctrl-C to NAME, which must end
    <!-- file: PATH -->                 a block of any kind is written to PATH
    <!-- given: PATH as NAME -->        with an empty line after it: a file of the repository is there as NAME
    <!-- data: NAME -->                 with an empty line after it: a file of the folder COTERIE_DATA is there
    <!-- not run: REASON -->            a Python block that cannot run by itself

Python blocks of a page run in order as one program. `http://127.0.0.1:8765` becomes a free port, and the word TOKEN the
token that the last `coterie submit` printed.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.ports import steady_port

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# It changes the house that it runs in, so test_extending.py follows it, in a copy.
ELSEWHERE = ROOT / "docs" / "extending.md"
BLOCK = re.compile(
    r"(?:^<!-- (?P<marker>run|run: [^>]*|interrupt: [^>]*|given: [^>]*|data: [^>]*|file: [^>]*|not run: [^>]*) -->\n)?"
    r"(?:^```(?P<language>\w+)\n(?P<text>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
WAIT_S = 60.0
# The one interpreter in which a page's Python blocks run, block by block; it says after each whether that went well.
INTERPRETER = """
import json, linecache, os, sys, traceback
# As for who starts Python in that folder, wherever the environment says otherwise.
sys.path.insert(0, "")
names = {"__name__": "__main__"}
for line in sys.stdin:
    block = json.loads(line)
    os.chdir(block["folder"])
    # As in a notebook: functions can be asked for their source.
    linecache.cache[block["name"]] = (len(block["text"]), None, block["text"].splitlines(True), block["name"])
    try:
        exec(compile(block["text"], block["name"], "exec"), names)
        print("\\0done", flush=True)
    except BaseException:
        print(traceback.format_exc(), "\\0failed", flush=True)
"""


@dataclass(frozen=True)
class Block:
    """One marked or Python block: what its marker says, its language, its text and its line."""

    marker: str
    language: str
    text: str
    line: int


def blocks(page: str) -> Iterator[Block]:
    """The blocks of a page that something is to be done with."""
    for found in BLOCK.finditer(page):
        if found["marker"] or found["language"] == "python":
            line = page.count("\n", 0, found.start()) + 1
            yield Block(found["marker"] or "", found["language"] or "", found["text"] or "", line)


@dataclass
class Background:
    """A process that stays, and what it has printed; a thread keeps reading, so that it never waits for us."""

    process: subprocess.Popen[str]
    printed: list[str] = field(default_factory=list[str])
    grown: threading.Condition = field(default_factory=threading.Condition)

    def read(self) -> None:
        """Collect the output until it ends."""
        if self.process.stdout is None:
            return
        with self.process.stdout as lines:
            for line in lines:
                with self.grown:
                    self.printed.append(line)
                    self.grown.notify_all()

    def await_text(self, text: str) -> None:
        """Wait until the text has been printed."""
        with self.grown:
            told = self.grown.wait_for(lambda: any(text in line for line in self.printed), WAIT_S)
        assert told, f"{self.process.args} did not print {text!r} but: {''.join(self.printed)}"


class Reader:
    """Somebody who follows one page in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.port = steady_port()
        self.folder = folder
        (folder / ".venv").symlink_to(sys.prefix)
        self.token = ""
        self.background: dict[str, Background] = {}
        kept = {key: value for key, value in os.environ.items() if not key.startswith("COTERIE_")}
        self.environment = {
            **kept,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "COTERIE_URL": f"http://127.0.0.1:{self.port}",
            "COTERIE_PORT": str(self.port),
        }

    def assert_runs(self, block: Block) -> None:
        """Do what the block says."""
        verb, _, rest = block.marker.partition(": ")
        text = block.text.replace("127.0.0.1:8765", f"127.0.0.1:{self.port}")
        match verb, block.language:
            case "run", "console" if rest:
                name, _, until = rest.partition(" until ")
                (command,) = commands(text)
                self.start(name, command, until)
            case "run", "console":
                for command in commands(text):
                    self.run(command)
            case "interrupt", _:
                self.interrupt(rest)
            case "given", _:
                source, _, name = rest.partition(" as ")
                shutil.copy(ROOT / source, self.folder / name)
            case "data", _:
                shutil.copy(data_folder() / rest, self.folder / rest)
            case "file", _:
                (self.folder / rest).write_text(block.text, encoding="utf-8")
            case "not run", _:
                pass
            case "", "python":
                self.evaluate(text, f"line {block.line}")
            case _:
                raise AssertionError(f"line {block.line}: nobody knows what to do with {block.marker!r}")

    def run(self, command: str) -> None:
        """One command that ends; the folder in which it leaves us is where the next one starts."""
        where = self.folder / ".where"
        done = subprocess.run(
            ["bash", "-c", f"{self._with_token(command)}\nstatus=$?\npwd > '{where}'\nexit $status"],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
        assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
        self.folder = Path(where.read_text(encoding="utf-8").strip())
        where.unlink()
        for found in re.finditer(r"--token (\S+)", done.stdout):
            self.token = found[1]

    def evaluate(self, text: str, name: str) -> None:
        """One block of Python, after the blocks before it."""
        if "" not in self.background:
            command = [sys.executable, "-W", "error::DeprecationWarning", "-c", INTERPRETER]
            self._stay("", command, subprocess.PIPE)
        python = self.background[""]
        python.printed.clear()
        if python.process.stdin is not None:
            order = {"folder": str(self.folder), "text": text, "name": name}
            python.process.stdin.write(json.dumps(order) + "\n")
            python.process.stdin.flush()
        python.await_text("\0")
        assert "\0done" in python.printed[-1], "".join(python.printed)

    def start(self, name: str, command: str, until: str) -> None:
        """One command that stays."""
        self._stay(name, ["bash", "-c", f"exec {self._with_token(command)}"], subprocess.DEVNULL)
        self.background[name].await_text(until)

    def _stay(self, name: str, command: list[str], stdin: int) -> None:
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.background[name] = Background(process)
        threading.Thread(target=self.background[name].read, daemon=True).start()

    def interrupt(self, name: str) -> None:
        """Ctrl-C, and wait for the end."""
        process = self.background.pop(name).process
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) is not None

    def leave(self) -> None:
        """End whatever still runs, by its own process id."""
        for name in [*self.background]:
            process = self.background.pop(name).process
            if process.stdin is not None:
                process.stdin.close()
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _with_token(self, command: str) -> str:
        return re.sub(r"\bTOKEN\b", self.token, command)


def data_folder() -> Path:
    """Where data sets are; a page that needs one is skipped without it."""
    folder = os.environ.get("COTERIE_DATA")
    if not folder:
        pytest.skip("COTERIE_DATA is not set")
    return Path(folder)


def commands(text: str) -> list[str]:
    """The `$` lines of a console block, with the lines that a backslash continues."""
    joined = text.replace("\\\n", " ")
    return [line.removeprefix("$ ") for line in joined.splitlines() if line.startswith("$ ")]


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    somebody = Reader(tmp_path)
    yield somebody
    somebody.leave()


@pytest.mark.capability("A17")
@pytest.mark.snippet
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page != ELSEWHERE and [*blocks(page.read_text(encoding="utf-8"))]],
    ids=lambda p: p.name,
)
def test_the_page_runs(page: Path, reader: Reader) -> None:
    for block in blocks(page.read_text(encoding="utf-8")):
        reader.assert_runs(block)


def test_a_block_or_command_that_fails_fails_the_page(reader: Reader) -> None:
    reader.assert_runs(Block(marker="", language="python", text="x = 6 * 7\n", line=1))
    reader.assert_runs(Block(marker="", language="python", text="assert x == 42\n", line=2))
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        reader.assert_runs(Block(marker="", language="python", text="x / 0\n", line=3))
    with pytest.raises(AssertionError, match="exit 3"):
        reader.assert_runs(Block(marker="run", language="console", text="$ exit 3\n", line=4))
    with pytest.raises(AssertionError, match="nobody knows"):
        reader.assert_runs(Block(marker="walk", language="console", text="$ true\n", line=5))


LINK = re.compile(r"\]\((?!https?://|#)(?P<path>[^)#]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", [*PAGES, ROOT / "SECURITY.md", ROOT / "CHANGELOG.md"], ids=lambda p: p.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    dead = [
        found["path"]
        for found in LINK.finditer(page.read_text(encoding="utf-8"))
        if not (page.parent / found["path"]).exists()
    ]
    assert dead == []


def test_blocks_are_found_as_the_docstring_says() -> None:
    page = (
        "<!-- run -->\n```console\n$ a\nout\n$ b \\\n  c\n```\n\n"
        "```console\n$ left alone\n```\n<!-- interrupt: x -->\n\n"
        "```python\n1\n```\n<!-- file: f.csv -->\n```text\nrow\n```\n"
    )
    found = [*blocks(page)]
    assert [(block.marker, block.language, block.line) for block in found] == [
        ("run", "console", 1),
        ("interrupt: x", "", 12),
        ("", "python", 14),
        ("file: f.csv", "text", 17),
    ]
    assert commands(found[0].text) == ["a", "b    c"]
