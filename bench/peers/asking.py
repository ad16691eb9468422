"""QuaPy, asked through files: it lives in an environment and a process of its own."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from app.stats.moments import Floats
from bench.peers.drawing import Draw

PROGRAM = Path(__file__).with_name("answering.py")
QUAPY = ("EM BCTS", "EM VS", "PACC", "DMy", "ACC")


@dataclass(frozen=True, slots=True)
class Quapy:
    """Asked first and heard later, it computes while we do."""

    questions: IO[str]
    answers: IO[str]
    place: Path

    def ask(self, draw: Draw) -> None:
        path = self.place / "draw.npz"
        windows = [window.outputs.rows for window in draw.windows]
        np.savez(
            path,
            rows=draw.reference.rows,
            labels=draw.reference.labels,
            windows=np.concatenate(windows),
            sizes=[len(rows) for rows in windows],
        )
        print(path, file=self.questions, flush=True)

    def hear(self) -> dict[str, Floats]:
        """Its estimates: a row for each window."""
        path = self.answers.readline().strip()
        if not path:
            raise RuntimeError("QuaPy has stopped; what it said is above")
        with np.load(path) as answer:
            return {name: answer[name] for name in QUAPY}


@contextmanager
def quapy(python: Path) -> Iterator[Quapy]:
    """QuaPy in the environment of this interpreter."""
    with (
        tempfile.TemporaryDirectory(prefix="peers-") as place,
        # Isolated: nothing of this project, nor of its settings, gets into that environment.
        subprocess.Popen(
            [python, "-I", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        yield Quapy(process.stdin, process.stdout, Path(place))
