"""`coterie identities`: endorse the keys of devices that are really there, with a key that the coordinator lacks."""

from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.client import store_of
from coterie.cli.output import JsonOption, Output
from coterie.cli.places import file_to_write
from coterie.errors import InputError

app = typer.Typer(help="Endorse devices with a key that the coordinator does not hold.")


@app.command("show")
def show(
    name: Annotated[str, typer.Option(help="The name of this client's store.")] = "client",
    store: Annotated[
        Path | None, typer.Option(help="Where the client keeps its key (default: ./.coterie/NAME).")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show the public key of a client on this machine, which is made if there is none: an issuer endorses it."""
    from coterie.protocol.private_files import make_private_folder
    from coterie.protocol.signing import SigningKey

    folder = store or store_of(name)
    make_private_folder(folder)
    public = SigningKey.load_or_create(folder / "device.key").public
    output = Output(json)
    output.event("identity", identity=public, store=folder)
    output.say(public)


@app.command("endorse")
def endorse(
    identity: Annotated[str, typer.Argument(metavar="KEY", help="The client's public key: `coterie identities show`.")],
    subject: Annotated[str, typer.Option(help="Subject: a name for the person, site or device behind the key.")],
    key: Annotated[
        Path, typer.Option(help="The issuer's private key, created if absent. Keep it off the coordinator.")
    ],
    out: Annotated[Path | None, typer.Option(help="The file to write (default: SUBJECT.endorsement.json).")] = None,
    json: JsonOption = False,
) -> None:
    """Sign for a client's key. The client joins with `--endorsement FILE`; policies name the issuer's public key."""
    from pydantic import ValidationError

    from coterie.protocol.canonical import canonical_json
    from coterie.protocol.endorsements import Endorsement
    from coterie.protocol.files import make_folder, write_durably
    from coterie.protocol.signing import SigningKey

    output = Output(json)
    issuer = SigningKey.load_or_create(key)
    try:
        made = Endorsement.issue(issuer, identity=identity, subject=subject)
    except ValidationError as error:
        about = error.errors()[0]["loc"] == ("subject",)
        wanted = "--subject must be 1 to 64 letters, digits and . _ : -" if about else "KEY is 64 hexadecimal digits"
        found = (subject if about else identity)[:72]
        raise InputError(
            f"{wanted}, not {found!r}.", hint="`coterie identities show` prints a client's KEY.", code="usage"
        ) from None
    path = file_to_write(out or Path(f"{subject}.endorsement.json"))
    make_folder(path.parent)
    write_durably(path, canonical_json(made.model_dump(mode="json")))
    output.event("endorsed", identity=identity, subject=subject, issuer=issuer.public, path=path)
    output.say(f"{subject} is endorsed in {path}; the issuer is {issuer.public}.")
