"""What the files in which the service is packaged say, and whether the project understands it."""

import argparse
import contextlib
import io
import json
import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from app import cli
from app.config import BadSettings, Settings

ROOT = Path(__file__).parents[2]


def load(place: Path) -> Any:
    return yaml.safe_load(place.read_text())


def load_all(place: Path) -> list[Any]:
    return [one for one in yaml.safe_load_all(place.read_text()) if one is not None]


@dataclass(frozen=True, slots=True)
class Instruction:
    word: str
    rest: str

    @property
    def argv(self) -> list[str]:
        """Of the form that is a list, or of a line of shell."""
        if self.rest.startswith("["):
            found: list[str] = json.loads(self.rest)
            return found
        return shlex.split(self.rest)


def dockerfile(text: str) -> list[Instruction]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [
        Instruction(word, rest.strip())
        for word, _, rest in (line.strip().partition(" ") for line in joined.splitlines())
        if word
    ]


def stages(instructions: Sequence[Instruction]) -> list[list[Instruction]]:
    """The instructions of each stage, its FROM first."""
    found: list[list[Instruction]] = []
    for one in instructions:
        if one.word == "FROM":
            found.append([])
        if found:
            found[-1].append(one)
    return found


def pairs(instructions: Sequence[Instruction], word: str) -> dict[str, str]:
    """What all ENV, ARG or LABEL of a stage set."""
    given = [pair for one in instructions if one.word == word for pair in one.argv]
    return dict(pair.split("=", 1) for pair in given if "=" in pair)


def parsed(
    command: Sequence[str], parser: Callable[[], argparse.ArgumentParser] = cli.parser
) -> argparse.Namespace | str:
    """The options of a command as it is really parsed, or what is wrong with it."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return parser().parse_args(list(command))
    except SystemExit:
        return f"{shlex.join(command)}: {said.getvalue().strip().splitlines()[-1]}"


def settings(environ: Mapping[str, str], files: Mapping[str, Path]) -> Settings | str:
    """The settings as they are really read, or what is wrong; `files` says where a path lies."""
    here = {name: str(files.get(value, value)) for name, value in environ.items()}
    try:
        return Settings.from_env(here)
    except BadSettings as error:
        return str(error)


def made_secrets(home: Path) -> dict[str, Path]:
    """What `make secrets` makes, made in a directory of its own; by name."""
    script = home / "make-secrets"
    script.write_text((ROOT / "deploy/compose/make-secrets").read_text())
    subprocess.run(["sh", script], check=True, capture_output=True)
    return {place.name: place for place in (home / "secrets").iterdir()}


def every(value: Any, key: str) -> Iterator[Any]:
    """What stands under a key, wherever that is."""
    if isinstance(value, dict):
        for name, part in value.items():
            if name == key:
                yield part
            yield from every(part, key)
    elif isinstance(value, list):
        for part in value:
            yield from every(part, key)
