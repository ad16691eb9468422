"""A reference as a table of cells: how often a prediction of each kind belongs to each label.

A prediction with a softmax row is of one of a few kinds by its *code* (argmax, runner-up, coarse
confidence; see `moments`), a hard one by its label. What the paper asks of a black box is a map of
its outputs whose mean, given a label, stays put; cells of codes are such a map, and keep nearly all
that a whole softmax row says of the label mix (docs/statistics.md).
"""

from dataclasses import dataclass

import numpy as np
from scipy import optimize, special

from app.stats import calibration as calibrations
from app.stats import moments
from app.stats.calibration import Calibration
from app.stats.moments import Counts, Floats, Sums
from app.stats.ranking import Ranks, Rows, ranks

# A code with fewer labelled records than this shares a cell with the other rare codes of its
# argmax. Smaller cells know nothing of their own, larger ones mix what differs.
CELL_RECORDS = 5
# Cells are made larger until there are no more than this, or two a label: the time of an estimate
# grows with cells times the square of labels.
MOST_CELLS = 1500

# Rows are calibrated so many numbers at a time, for the sake of memory.
BLOCK_NUMBERS = 4_000_000


@dataclass(frozen=True, slots=True)
class CellTable:
    """What a reference says of each cell, frozen with it.

    - `first[b]`: the argmax of every prediction in cell `b`.
    - `counts[b, j]`: records of cell `b` whose true label is `present[j]`.
    - `believed[b, j]`: the same by calibrated rows, which sum to the same over labels; None for
      hard predictions.
    - `codes` (sorted) and `cell`: the cell of each code that the reference has seen. `rest[i]` is
      the cell of all other predictions with argmax `i`, -1 where the reference has no such argmax;
      for hard predictions it is all there is.
    """

    k: int
    present: Counts
    first: Counts
    counts: Counts
    rest: Counts
    believed: Floats | None = None
    codes: Counts | None = None
    cell: Counts | None = None
    calibration: Calibration | None = None

    @property
    def soft(self) -> bool:
        return self.codes is not None

    @property
    def nbytes(self) -> int:
        arrays = (self.counts, self.believed, self.codes, self.cell)
        return sum(array.nbytes for array in arrays if array is not None)


@dataclass(frozen=True, slots=True)
class CellCounts:
    """A window's predictions by cell, and the share of it that has no cell."""

    counts: Floats
    dropped: float


def of_confusion(counts: Counts, present: Counts) -> CellTable:
    """A cell for each label that was ever predicted for a record of the `present` ones.

    >>> of_confusion(np.array([[9, 1], [0, 0]]), np.array([0, 1])).rest.tolist()
    [0, -1]
    """
    of_present = counts[:, present]
    first = np.flatnonzero(of_present.any(axis=1))
    rest = np.full(len(counts), -1)
    rest[first] = np.arange(len(first))
    return CellTable(len(counts), present, first, of_present[first], rest)


def of_rows(rows: Rows, actual: Counts, present: Counts, ranked: Ranks | None = None) -> CellTable:
    """The table of labelled softmax rows; at least one record must be of a present label.

    `ranked` are the ranks of the rows, before they were rounded to single precision.

    >>> rows = np.repeat([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]], [30, 20, 10], axis=0)
    >>> table = of_rows(rows, np.repeat([0, 1], [40, 20]), np.array([0, 1]))
    >>> table.counts.tolist(), table.first.tolist()
    ([[10, 10], [0, 10], [30, 0]], [0, 1, 0])
    """
    k = rows.shape[1]
    place = np.full(k, -1)
    place[present] = np.arange(len(present))
    ranked = ranked or ranks(rows)
    known = place[actual] >= 0
    if not known.all():
        rows, actual, ranked = rows[known], actual[known], ranked.of(np.flatnonzero(known))
    codes, of_record = np.unique(moments.codes_of(k, ranked), return_inverse=True)
    cell, rest, first = _cells(k, codes, np.bincount(of_record))
    calibration = calibrations.fit(rows, actual, present)
    counts = np.zeros((len(first), len(present)), dtype=np.int64)
    np.add.at(counts, (cell[of_record], place[actual]), 1)
    believed = _summed(calibration, rows, cell[of_record], len(first))
    believed = as_often_right(believed, counts, *own_labels(k, first, present))
    return CellTable(k, present, first, counts, rest, believed, codes, cell, calibration)


def own_labels(k: int, first: Counts, present: Counts) -> tuple[Counts, Counts]:
    """The cells that predict one of the present labels, and the place of that label among them.

    >>> cell, label = own_labels(4, np.array([0, 2, 3, 2]), np.array([2, 3]))
    >>> cell.tolist(), label.tolist()
    ([1, 2, 3], [0, 1, 0])
    """
    place = np.full(k, -1)
    place[present] = np.arange(len(present))
    label = place[first]
    cell = np.flatnonzero(label >= 0)
    return cell, label[cell]


def in_window(table: CellTable, sums: Sums) -> CellCounts:
    """A window's predictions in the cells of the table, by code if it has them, else by label."""
    if not table.soft:
        return _placed(len(table.first), table.rest, sums.counts)
    if sums.soft is None or not len(sums.soft.codes):
        raise ValueError("a window without codes cannot be put into cells of codes")
    return _placed(len(table.first), _cell_of(table, sums.soft.codes), sums.soft.code_counts)


def _cell_of(table: CellTable, codes: Counts) -> Counts:
    assert table.codes is not None
    assert table.cell is not None
    place = np.minimum(np.searchsorted(table.codes, codes), len(table.codes) - 1)
    seen = table.codes[place] == codes
    return np.where(seen, table.cell[place], table.rest[moments.decode(table.k, codes)[0]])


def _placed(size: int, cell: Counts, counts: Counts) -> CellCounts:
    kept = cell >= 0
    in_cells = np.bincount(cell[kept], weights=counts[kept], minlength=size)
    lost = float(counts[~kept].sum()) / max(1, int(counts.sum()))
    return CellCounts(np.asarray(in_cells, dtype=np.float64), lost)


def _summed(calibration: Calibration, rows: Rows, cell: Counts, cells: int) -> Floats:
    """Calibrated rows added up by cell."""
    believed = np.zeros((cells, calibration.k))
    step = max(1, BLOCK_NUMBERS // rows.shape[1])
    for start in range(0, len(rows), step):
        part = calibrations.of_present(calibration, rows[start : start + step])
        np.add.at(believed, cell[start : start + step], part)
    return believed


# Twice the logarithm of the longest odds that there are in double precision, and more.
CERTAIN = 80.0


def as_often_right(believed: Floats, counts: Counts, cell: Counts, label: Counts) -> Floats:
    """Calibrated sums by which predictions are right about as often as they were seen to be.

    One factor moves the odds of every cell's own label. Calibration goes by likelihood, to which
    half a percent too many right is nothing; to the accuracy of a long window it is the error. The
    gap is closed but for the part that counting alone explains (James and Stein).
    """
    right, size = float(counts[cell, label].sum()), counts[cell].sum(axis=1)
    if not 0.0 < right < size.sum():
        return believed
    rate = np.clip(believed[cell, label] / size, np.finfo(np.float64).eps, 1.0 - 1e-12)
    gap, noise = right - float(size @ rate), float(size @ (rate * (1.0 - rate)))
    if gap**2 <= noise:
        return believed
    wanted = right - noise / gap

    def surplus(factor: float) -> float:
        return float(size @ special.expit(special.logit(rate) + factor)) - wanted

    moved = special.expit(special.logit(rate) + optimize.brentq(surplus, -CERTAIN, CERTAIN))
    sums = believed.copy()
    sums[cell] *= ((1.0 - moved) / (1.0 - rate))[:, None]
    sums[cell, label] = moved * size
    return sums


def _cells(k: int, codes: Counts, sizes: Counts) -> tuple[Counts, Counts, Counts]:
    """The cell of each code, the cell of rare and unseen codes by argmax, and each cell's argmax.

    Rare codes of one argmax are pooled; where even the pool is rare, the smallest of the other
    codes join it, all of them if tied, so that the order of labels does not matter.
    """
    first = moments.decode(k, codes)[0]
    own = _frequent(k, first, sizes, _least(k, sizes))
    argmaxes = np.unique(first)
    rest = np.full(k, -1)
    rest[argmaxes] = np.arange(len(argmaxes))
    cell = np.where(own, len(argmaxes) - 1 + np.cumsum(own), rest[first])
    return cell, rest, np.concatenate([argmaxes, first[own]])


def _least(k: int, sizes: Counts) -> int:
    """How many records a code needs for a cell of its own."""
    most = max(MOST_CELLS, 2 * k)
    if (sizes >= CELL_RECORDS).sum() <= most:
        return CELL_RECORDS
    return int(np.sort(sizes)[-most]) + 1


def _frequent(k: int, first: Counts, sizes: Counts, least: int) -> np.ndarray:
    own = sizes >= least
    pooled = np.bincount(first, weights=sizes * ~own, minlength=k)
    smallest = np.full(k, np.iinfo(np.int64).max)
    np.minimum.at(smallest, first[own], sizes[own])
    return np.asarray(own & ~((pooled[first] < least) & (sizes == smallest[first])))
