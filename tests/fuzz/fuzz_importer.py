"""Coverage-guided fuzzing of the importer, for `make fuzz`:

    python tests/fuzz/fuzz_importer.py [FOLDER] -max_total_time=SECONDS

with coterie and atheris in the environment; the options are libFuzzer's. Inputs that begin with a zero choose a graph
of translated operators; the others are bytes of ONNX files, which start from the fixtures. Anything but a result or a
refusal is a finding, and so is a run of more than ten seconds or 2 GB: libFuzzer leaves the input in a file, whose name
it prints.
"""

# atheris has no types, and lives in an environment of its own.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportAttributeAccessIssue=false
# pyright: reportMissingModuleSource=false

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import atheris

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

with atheris.instrument_imports(include=["coterie.compute.onnx", "tests.compute.importer"]):
    from tests.compute.importer.hostile import attempt, drawn_graph

LIMITS = ("-timeout=10", "-rss_limit_mb=2048", "-max_len=32768")
FIXTURES = ROOT / "tests" / "compute" / "importer" / "fixtures"


def one_input(data: bytes) -> None:
    """One run of the target."""
    if data[:1] == b"\x00":
        provider: Any = atheris.FuzzedDataProvider(data[1:])
        data = drawn_graph(lambda count: provider.ConsumeIntInRange(0, count - 1))
    attempt(data)


def main() -> None:
    """Fuzz until libFuzzer's options say that it is enough."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(FIXTURES, folder, dirs_exist_ok=True)
        (Path(folder) / "graph").write_bytes(bytes(range(200)))
        atheris.Setup([sys.argv[0], *LIMITS, *sys.argv[1:], folder], one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
