"""Sequential trees as in SynthPop (Nowok, Raab and Dibben, 2016): each column is drawn given the
previous columns.

Trees are grown on codes (F, n) int32 of columns in drawing order: 0..levels - 1 for values,
``levels`` for missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field

from privacy_assets.errors import ConfigError, did_you_mean, safe_repr
from privacy_assets.generators.base import (
    Draw,
    FittedGenerator,
    Training,
    read_arrays,
    write_arrays,
)
from privacy_assets.generators.rewriting import RelationalGenerator
from privacy_assets.infra.progress import advance
from privacy_assets.infra.settings import Tuple, declared
from privacy_assets.tables.column import DAY, Column, ranked
from privacy_assets.tables.encoding import MatrixCoding
from privacy_assets.tables.published_categories import OTHER, count_holders
from privacy_assets.tables.roles import MAX_CLOSED_VALUES
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

if TYPE_CHECKING:
    from privacy_assets.generators._tree_kernels import CartTree

MOST_CLASSES = 64
# standard deviations by which the gain of a split exceeds that of a random split
_BEYOND_CHANCE = 3.0
_INTERVALS = 5  # of equally many rows, which are the levels of a number for the shrinkage
# people from which a category has a position of its own, although a leaf needs more
_FEWEST_OF_CATEGORY = 50
_SMALL_SHARE = 0.2  # share of rows with categories smaller than a leaf from which a column is named
_SMALLER_LEAVES = (50, 20)  # values of min_samples_leaf to rehearse


class CodedColumns(NamedTuple):
    """Columns as codes.

    Attributes:
        codes: Codes, int32 of shape (F, n), see the module.
        levels: Number of values of each column, int64 of shape (F,).
        is_number: True for numbers, bool of shape (F,).
    """

    codes: np.ndarray
    levels: np.ndarray
    is_number: np.ndarray


class Target(NamedTuple):
    """Target of a tree, and donors of its r rows.

    Attributes:
        goal: Target, see :func:`._tree_kernels.grow`; float64 of shape (r,).
        n_classes: Number of classes, see :func:`._tree_kernels.grow`.
        donors: Code that each row donates, int of shape (r,).
        donor_levels: Levels of the donors for the shrinkage, int of shape (r,). None: the donors.
        values: Values of the donors, float64 of shape (r,), which then have a reach. None: no
            reach.
        root_codes: Codes that are drawn above the root, int32. None: the donors of the root are.
    """

    goal: np.ndarray
    n_classes: int
    donors: np.ndarray
    donor_levels: np.ndarray | None = None
    values: np.ndarray | None = None
    root_codes: np.ndarray | None = None


class _Features(NamedTuple):
    """Features of a tree: one or two tables of each column.

    Attributes:
        columns: Position of the column of each of the f features.
        tables: Value of each code of the column, one float32 array per feature.
        distinct_values: Value at each position, ascending, as many as in the table; zeros follow.
        positions: Position of each row, int32 of shape (f, r).
    """

    columns: list[int]
    tables: list[np.ndarray]
    distinct_values: list[np.ndarray]
    positions: np.ndarray


@declared
class SynthPop(RelationalGenerator):
    """Sequential classification and regression trees with values drawn from the training rows of a
    leaf.

    For each column a tree is grown on the previous columns (Gini for categories and booleans,
    squared error for numbers, integers and datetimes), and a value is copied from a drawn row of
    the leaf, or of a node above it (``shrinkage``). Splits that are not better than random ones are
    not made, as in conditional inference trees (Hothorn, Hornik and Zeileis 2006). Missing is a
    value: for numbers, a first tree predicts whether the value is missing, and a second one the
    value. As a predictor a number is represented by its rank (missing: mean rank and an indicator),
    and a category by its position in an order by the target (Coppersmith et al. 1999), in which
    categories with fewer than 50 rows (or than ``min_samples_leaf``) share a position. Columns with
    many categories are therefore not slower. Categories come from the training rows, so names and
    other identifiers must be dropped first.

    Attributes:
        min_samples_leaf: Minimum number of training subjects in a leaf. No split leaves fewer on a
            side. Without subjects, and on coded cells in audits, each row is a subject.
        shrinkage: Number of training subjects for each effective level of a leaf by which it is
            drawn towards the node above it, and the whole table towards equal shares of all
            published categories. A leaf of 100 people says much about two levels and little about
            250, but its counts disclose these people. Levels of a number are fifths of the column.
            See :func:`._tree_kernels.climbing`. 0: as in SynthPop, values come from the leaf alone,
            and splits are made although they are not better than random ones.
        smoothing: If True, numbers and times are moved within their leaf, by at most the distance
            to the nearest fifth of its subjects, so that they are not values of real rows (but
            values of codes are, see :mod:`.relations`). Values shared by ``min_samples_leaf``
            subjects of the column or a fifth of the leaf, and columns with few distinct values, are
            not changed. The column's precision and range are kept.
        visit: Order of the columns. None: order of the table.
    """

    name = "synthpop"
    summary = (
        "Sequential trees: each column is drawn from training rows that agree in the columns"
        " before it."
    )

    min_samples_leaf: int = Field(default=100, ge=1)
    shrinkage: float = Field(default=30.0, ge=0, allow_inf_nan=False)
    smoothing: bool = True
    visit: Annotated[tuple[str, ...] | None, Tuple] = None

    def overfitting_protection(self) -> dict[str, float]:
        """Implement :meth:`Generator.overfitting_protection`: the leaf size, unless it is 1, and
        the shrinkage.
        """
        protection: dict[str, float] = {}
        if self.min_samples_leaf > 1:
            protection["min_samples_leaf"] = self.min_samples_leaf
        if self.shrinkage > 0:
            protection["shrinkage"] = self.shrinkage
        return protection

    def _fit_rows(self, train: Table, training: Training) -> FittedGenerator:
        order = self._order(train.schema.names)
        ranks = []
        values = {}
        for name in order:
            (train_ranks, _), distinct = ranked([train[name], _published(train, name)])
            ranks.append(train_ranks)
            values[name] = distinct
        levels = np.array([len(distinct) for distinct in values.values()], dtype=np.int64)
        codes = np.stack(ranks).astype(np.int32)
        # missing is the code after the last value
        codes = np.where(codes < 0, levels[:, None], codes).astype(np.int32)
        is_number = np.array([values[name].values is None for name in order], dtype=np.bool_)
        subject_codes = training.subject_codes
        if subject_codes is not None and len(np.unique(subject_codes)) == len(subject_codes):
            subject_codes = None  # counting rows is faster
        for note in small_categories(self.min_samples_leaf, train, order, subject_codes):
            training.progress(note)
        columns = CodedColumns(codes, levels, is_number)
        steps = []
        for i, name in enumerate(order):
            numbers = train[name].floats() if is_number[i] else np.zeros(len(train))
            rng = np.random.default_rng(np.random.SeedSequence(training.seed, spawn_key=(i,)))
            trees = trees_of(self, columns, numbers, i, rng, subject_codes)
            steps.append(list(trees))
            advance(training.progress, "growing trees: columns", i + 1, len(order))
        return FittedSynthPop(self, train.schema, order, values, steps)

    def drawer(self, cells: np.ndarray, coding: MatrixCoding) -> Draw:
        """Implement :meth:`CodedGenerator.drawer`. Only the ranks of the cells are shared.

        Args:
            cells: Cells of all rows, float64 of shape (F, N).
            coding: Coding of the cells.

        Returns:
            A function that fits to some of the rows and draws new ones, float64 of shape (F, size).

        Raises:
            ConfigError: If ``visit`` does not name every column once.
        """
        from privacy_assets.generators._tree_kernels import draw_codes

        names = coding.schema.names
        order = np.array([names.index(name) for name in self._order(names)])
        ordered_cells = np.ascontiguousarray(cells[order], dtype=np.float64)
        ranks = np.empty(ordered_cells.shape, dtype=np.int32)
        for i, column_cells in enumerate(ordered_cells):
            ranks[i] = np.unique(column_cells, return_inverse=True)[1]
        is_number = coding.is_number[order]

        def draw(rows: np.ndarray, size: int, seed: int) -> np.ndarray:
            rng = np.random.default_rng(seed)
            train_cells = ordered_cells[:, rows]
            codes = np.empty((len(order), len(rows)), dtype=np.int32)
            levels = np.empty(len(order), dtype=np.int64)
            values = []
            for i, column_ranks in enumerate(ranks[:, rows]):
                distinct, first_rows = np.unique(column_ranks, return_index=True)
                codes[i] = np.searchsorted(distinct, column_ranks)
                column_values = train_cells[i, first_rows]  # ascending, missing last
                levels[i] = len(column_values) - int(np.isnan(column_values[-1]))
                values.append(column_values)
            columns = CodedColumns(codes, levels, is_number)

            synthetic_codes = np.full((len(order), size), -1, dtype=np.int32)
            synthetic = np.empty((len(order), size))
            for i, column in enumerate(values):
                moves = np.zeros(size)
                for tree in trees_of(self, columns, train_cells[i], i, rng):
                    draw_codes(tree, synthetic_codes[:i], synthetic_codes[i], moves, rng)
                drawn_cells = column[synthetic_codes[i]]
                if moves.any():
                    largest = column[levels[i] - 1]
                    drawn_cells = moved(drawn_cells, moves, column[0], largest)
                    drawn_cells = coding.rounded(order[i], drawn_cells)
                synthetic[order[i]] = drawn_cells
            return synthetic

        return draw

    def _order(self, names: list[str]) -> list[str]:
        order = list(self.visit) if self.visit is not None else names
        for name in order:
            if name not in names:
                raise ConfigError(
                    "synthpop: visit names the unknown column"
                    f" {safe_repr(name)}.{did_you_mean(name, names)}"
                )
        if sorted(order) != sorted(names):
            raise ConfigError("synthpop: visit must name every column once.")
        return order

    def _load_rows(
        self, folder: Path, schema: TableSchema, manifest: Mapping[str, Any]
    ) -> FittedGenerator:
        arrays = read_arrays(folder)
        texts = manifest["texts"]
        values = {}
        for i, column in enumerate(schema.columns):
            name = column.name
            if column.kind == "categorical":
                categories = texts[str(i)]
                codes = np.arange(len(categories))
                values[name] = Column.of_codes(name, column.kind, codes, categories)
            elif column.kind == "boolean":
                values[name] = Column.of_codes(name, column.kind, arrays[f"values.{i}"])
            else:
                values[name] = Column(name, column.kind, arrays[f"values.{i}"])

        steps = []
        for i, n_trees in enumerate(manifest["trees"]):
            prefixes = [f"tree.{i}.{tree}." for tree in range(n_trees)]
            steps.append([_stored_tree(arrays, prefix) for prefix in prefixes])
        return FittedSynthPop(self, schema, list(manifest["visit"]), values, steps)


def _stored_tree(arrays: Mapping[str, np.ndarray], prefix: str) -> CartTree:
    """Return the tree whose arrays have this prefix in their names."""
    from privacy_assets.generators._tree_kernels import CartTree

    return CartTree(*(arrays[prefix + field] for field in CartTree._fields))


class FittedSynthPop(FittedGenerator):
    """Trees in visiting order. ``values`` are the distinct values of each column; rows are
    processed as codes.

    Code k is the k-th smallest value, and len(values) is missing. A step is one tree whose donors
    are codes, or two: donors of the first are missing (code) or not (-1), donors of the second are
    codes.
    """

    def __init__(
        self,
        generator: SynthPop,
        schema: TableSchema,
        order: list[str],
        values: Mapping[str, Column],
        steps: list[list[CartTree]],
    ) -> None:
        self.generator = generator
        self.schema = schema
        self.order = order
        self.values = values
        self.steps = steps

    def _sample(self, n_rows: int, seed: int) -> Table:
        from privacy_assets.generators._tree_kernels import draw_codes

        codes = np.full((len(self.order), n_rows), -1, dtype=np.int32)
        columns = {}
        for i, (name, trees) in enumerate(zip(self.order, self.steps, strict=True)):
            rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(i,)))
            moves = np.zeros(n_rows)
            for tree in trees:
                draw_codes(tree, codes[:i], codes[i], moves, rng)
            values = self.values[name]
            positions = np.where(codes[i] == len(values), -1, codes[i])
            columns[name] = _moved(values.take_or_missing(positions), moves, values)
        return Table.of_columns(self.schema, columns)

    def _save(self, folder: Path) -> dict[str, Any]:
        arrays: dict[str, np.ndarray] = {}
        texts: dict[str, list[str]] = {}
        for i, column in enumerate(self.schema.columns):
            if column.kind == "categorical":
                texts[str(i)] = self.values[column.name].objects()
            else:
                arrays[f"values.{i}"] = self.values[column.name].cells
        for i, trees in enumerate(self.steps):
            for j, tree in enumerate(trees):
                for field, array in tree._asdict().items():
                    arrays[f"tree.{i}.{j}.{field}"] = array
        write_arrays(folder, arrays)
        return {"visit": self.order, "trees": [len(trees) for trees in self.steps], "texts": texts}


def _moved(column: Column, moves: np.ndarray, distinct: Column) -> Column:
    """Move numbers or times by ``moves`` (n,), in days for times, within the range of the
    ``distinct`` values.
    """
    rows = np.flatnonzero(moves)
    if len(rows) == 0:
        return column
    old = column.take(rows).floats()
    low, high = distinct.floats()[[0, -1]].tolist()
    change = moved(old, moves[rows], low, high) - old
    cells = column.cells.copy()
    if column.kind == "numeric":
        cells[rows] = old + change
    else:
        unit = DAY if column.kind == "datetime" else 1
        cells[rows] += np.rint(change * unit).astype(np.int64)
    return replace(column, cells=cells)


def _published(train: Table, name: str) -> Column:
    """Return the categories that the rule on rare values lets be published, which not all occur in
    train.
    """
    column = train[name]
    rule = train.rules.get(name)
    if column.kind != "categorical" or rule is None:
        return column.take(np.zeros(0, np.int64))
    names = set((rule.recoding or {}).values()) - {None}
    return Column.of_codes(name, column.kind, np.arange(len(names)), sorted(names))


def small_categories(
    min_samples_leaf: int,
    train: Table,
    order: Sequence[str],
    subject_codes: np.ndarray | None = None,
) -> Iterator[str]:
    """Yield a sentence for each column in which at least a fifth of the rows have a category
    smaller than a leaf.

    A leaf contains several of these categories, so the columns that are drawn later depend less on
    them.

    Args:
        min_samples_leaf: Minimum number of people in a leaf.
        train: Training rows.
        order: Columns in the order in which they are drawn.
        subject_codes: Subject of each row, int64 of shape (n,). None: each row is a subject.

    Yields:
        Sentences with the name of the column, the number of these categories, and the setting to
        rehearse.
    """
    smaller_leaves = [str(leaf) for leaf in _SMALLER_LEAVES if leaf < min_samples_leaf]
    if not smaller_leaves:
        return
    rehearsal = (
        f"privacy-assets run TABLE --rehearse --try min_samples_leaf={','.join(smaller_leaves)}"
    )
    for name in order[:-1]:
        column = train[name]
        if column.kind != "categorical":
            continue
        values = [*(column.values or ()), None]
        codes = np.where(column.missing, len(values) - 1, column.cells).astype(np.int64)
        n_holders = count_holders(codes, subject_codes, len(values))
        n_rows = np.bincount(codes, minlength=len(values))
        is_category = np.array([value not in (OTHER, None) for value in values]) & (n_holders > 0)
        is_small = is_category & (n_holders < min_samples_leaf)
        if n_rows[is_small].sum() < _SMALL_SHARE * len(train):
            continue
        yield (
            f"{name}: {is_small.sum()} of {is_category.sum()} categories have fewer people than"
            " a leaf"
            f" ({min_samples_leaf}), so other columns depend less on them. Smaller leaves keep"
            " more and can disclose"
            f" more. Try them without publication: {rehearsal}"
        )


def trees_of(
    generator: SynthPop,
    columns: CodedColumns,
    numbers: np.ndarray,
    column: int,
    rng: np.random.Generator,
    subject_codes: np.ndarray | None = None,
) -> Iterator[CartTree]:
    """Grow the trees of ``column`` given the previous columns.

    A category has one tree, whose donors are codes. A number has one tree for missingness if it has
    missing values, with donors ``levels`` (missing) or -1 (not), and one for the rows with a value,
    if any.

    Args:
        generator: Settings. If it smooths, donors of a number have a reach, unless the value is
            shared by ``min_samples_leaf`` subjects or the column has few distinct values.
        columns: Columns in drawing order, with n rows.
        numbers: Values of the column if it is a number, shape (n,).
        column: Position of the column.
        rng: Generator of the choice between equal splits.
        subject_codes: Subject of each row, int64 of shape (n,). None: count rows.

    Yields:
        The tree of missingness, if any, before the one of the values.
    """
    predictors = CodedColumns(
        columns.codes[:column], columns.levels[:column], columns.is_number[:column]
    )
    codes = columns.codes[column]
    missing_code = columns.levels[column]
    is_missing = codes == missing_code
    all_rows = np.arange(len(codes))
    if not columns.is_number[column]:
        goal, n_classes = classes(codes, missing_code + 1)
        root_codes = np.arange(missing_code + is_missing.any(), dtype=np.int32)
        target = Target(goal, n_classes, codes, root_codes=root_codes)
        yield fit_tree(generator, predictors, all_rows, target, rng, subject_codes)
        return
    if is_missing.any():
        target = Target(is_missing.astype(np.float64), 2, np.where(is_missing, codes, -1))
        yield fit_tree(generator, predictors, all_rows, target, rng, subject_codes)
    if is_missing.all():
        return
    rows = np.flatnonzero(~is_missing)
    target = Target(_standardized(numbers[rows]), 0, codes[rows])
    if missing_code > MAX_CLOSED_VALUES:
        target = target._replace(donor_levels=_intervals(target.donors))
        if generator.smoothing:
            target = target._replace(values=numbers[rows])
    yield fit_tree(generator, predictors, rows, target, rng, subject_codes)


def fit_tree(
    generator: SynthPop,
    predictors: CodedColumns,
    rows: np.ndarray,
    target: Target,
    rng: np.random.Generator,
    subject_codes: np.ndarray | None = None,
) -> CartTree:
    """Grow a tree on previous columns that stores the donors of each node.

    Args:
        generator: Settings.
        predictors: Previous columns, with n rows.
        rows: Rows of these to use, int64 of shape (r,), ascending.
        target: Target and donors of ``rows``.
        rng: Generator of the choice between equal splits.
        subject_codes: Subject of each row, int64 of shape (n,). None: count rows.

    Returns:
        The tree.
    """
    from privacy_assets.generators._tree_kernels import (
        CartTree,
        climbing,
        grow,
        median_rows_per_subject,
    )

    smallest = generator.min_samples_leaf
    row_subjects = None
    if subject_codes is not None:
        row_subjects = np.unique(subject_codes[rows], return_inverse=True)[1]
    features = _features(predictors, rows, target, smallest, row_subjects)
    spans = np.array([len(table) for table in features.tables], np.int64)
    n_deviations = _BEYOND_CHANCE if generator.shrinkage > 0 else -np.inf
    feature, low, high, right, start, order = grow(
        features.positions,
        spans,
        target.goal,
        target.n_classes,
        smallest,
        rng,
        row_subjects,
        n_deviations,
    )
    ordered_donors = target.donors.astype(np.int32)[order]
    ordered_levels = ordered_donors
    if target.donor_levels is not None:
        ordered_levels = target.donor_levels[order]
    shrinkage = generator.shrinkage * median_rows_per_subject(row_subjects)
    stop, parent, climb = climbing(feature, right, start, ordered_levels, shrinkage)
    root_codes = target.root_codes
    if root_codes is None:
        climb[0] = 0.0
        root_codes = np.zeros(0, np.int32)

    tree = CartTree(
        columns=np.array(features.columns, np.int64),
        ends=np.cumsum(spans),
        tables=_concatenated(features.tables),
        feature=feature.astype(np.int32),
        threshold=_thresholds(features.distinct_values, spans, feature, low, high),
        right=right.astype(np.int32),
        start=start.copy(),
        stop=stop,
        parent=parent,
        climb=climb,
        levels=root_codes,
        donors=ordered_donors,
        reach=np.zeros(0),
    )
    if target.values is None:
        return tree
    if row_subjects is None:
        row_subjects = np.arange(len(rows))
    return _with_reach(tree, target.values[order], row_subjects[order], smallest)


def _features(
    predictors: CodedColumns,
    rows: np.ndarray,
    target: Target,
    smallest: int,
    subject_codes: np.ndarray | None,
) -> _Features:
    """Return the features of ``rows`` int64 (r,), whose ``subject_codes`` are int64 (r,).

    Numbers are represented by ranks (missing: the mean rank, and an indicator), categories by
    :func:`level_scores`.
    """
    codes = predictors.codes
    row_codes = codes
    if len(rows) < codes.shape[1]:
        row_codes = codes[:, rows]
    smallest_group = min(smallest, _FEWEST_OF_CATEGORY)
    columns: list[int] = []
    tables: list[np.ndarray] = []
    distinct_values = []
    positions = np.empty((2 * len(codes), len(rows)), np.int32)
    for column, n_levels in enumerate(predictors.levels):
        is_number = predictors.is_number[column]
        if is_number:
            column_tables = _ranks(codes[column], n_levels)
        else:
            scores = level_scores(
                row_codes[column],
                n_levels + 1,
                target.goal,
                target.n_classes,
                smallest_group,
                subject_codes,
            )
            column_tables = [scores]
        for table in column_tables:
            if is_number and len(column_tables) == 1:  # codes are ordered by rank
                ordered = table
                positions[len(columns)] = row_codes[column]
            else:
                code_positions = _positions(table)
                ordered = np.zeros_like(table)
                ordered[code_positions] = table
                positions[len(columns)] = code_positions[row_codes[column]]
            columns.append(column)
            tables.append(table)
            distinct_values.append(ordered)
    return _Features(columns, tables, distinct_values, positions[: len(columns)])


def _thresholds(
    distinct_values: Sequence[np.ndarray],
    spans: np.ndarray,
    feature: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
) -> np.ndarray:
    """Return the value midway between the positions ``low`` and ``high`` of each node's feature,
    float64 (nodes,); 0 for leaves.
    """
    values = _concatenated(distinct_values).astype(np.float64)
    is_split = feature >= 0
    first = (np.cumsum(spans) - spans)[feature[is_split]]
    threshold = np.zeros(len(feature))
    threshold[is_split] = (values[first + low[is_split]] + values[first + high[is_split]]) / 2
    return threshold


def _concatenated(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenate float32 arrays, also if there is none."""
    return np.concatenate([np.zeros(0, np.float32), *arrays])


def moved(values: np.ndarray, moves: np.ndarray, low: float, high: float) -> np.ndarray:
    """Move numbers, reflected at the ends of a range.

    Args:
        values: Numbers, float64 (n,).
        moves: Move of each number, float64 (n,). 0: the number stays bit-identical.
        low: Smallest number of the column.
        high: Largest number of the column.

    Returns:
        The moved numbers, float64 (n,); those with a move are in [low, high].
    """
    result = values + moves
    below_high = np.where(result > high, 2 * high - result, result)
    reflected = np.where(result < low, 2 * low - result, below_high)
    return np.where(moves == 0, values, np.clip(reflected, low, high))


def _with_reach(
    tree: CartTree, values: np.ndarray, subject_codes: np.ndarray, smallest: int
) -> CartTree:
    """Add the reach of the donors of a number, see :func:`_tree_kernels.reach_of_donors`.

    ``values`` (rows,) and ``subject_codes`` int64 (rows,) belong to the donors, leaf by leaf.
    """
    from privacy_assets.generators._tree_kernels import reach_of_donors

    starts = tree.start[np.append(tree.feature < 0, True)]
    leaves = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    order = np.lexsort((values, leaves))
    values = values[order]
    subject_codes = subject_codes[order]
    codes = tree.donors[order]
    # count each value of a subject once
    pairs = np.unique(codes * np.int64(len(subject_codes)) + subject_codes)
    n_holders = np.bincount(pairs // len(subject_codes), minlength=int(codes.max()) + 1)
    is_shared = n_holders >= smallest
    reach = reach_of_donors(starts, values, subject_codes, smallest)
    return tree._replace(donors=codes, reach=np.where(is_shared[codes], 0.0, reach))


def classes(codes: np.ndarray, levels: int) -> tuple[np.ndarray, int]:
    """Number the codes by decreasing frequency.

    Args:
        codes: Codes of the rows, int (n,), each below ``levels``.
        levels: Number of codes.

    Returns:
        The class of each row, float64 (n,), and the number of classes, at most ``MOST_CLASSES``. If
        there are more codes, the rarest share the last class.
    """
    counts = np.bincount(codes, minlength=levels)
    n_classes = min(MOST_CLASSES, np.count_nonzero(counts))
    order = np.argsort(-counts, kind="stable")[:n_classes]
    class_of_code = np.full(levels, MOST_CLASSES - 1.0)
    class_of_code[order] = np.arange(len(order))
    return class_of_code[codes], len(order)


def level_scores(
    codes: np.ndarray,
    levels: int,
    goal: np.ndarray,
    n_classes: int,
    smallest: int,
    subject_codes: np.ndarray | None = None,
) -> np.ndarray:
    """Return a score for each code of a category, which orders the codes by the target.

    For numbers or two classes the score is the mean of the level's rows minus the overall mean. For
    more classes it is the projection of the level's class frequencies on their first principal
    component, weighted by rows (Coppersmith, Hong and Hosking 1999). Levels with few rows or none
    are pooled, because the mean of a few rows would disclose the target to the tree.

    Args:
        codes: Level of each row, int32 of shape (r,), each below ``levels``.
        levels: Number of levels.
        goal: Target, see :func:`._tree_kernels.grow`; float64 of shape (r,).
        n_classes: Number of classes, see :func:`._tree_kernels.grow`.
        smallest: Minimum number of rows (or subjects) of a level that has its own score.
        subject_codes: Subject of each row, int64 of shape (r,). None: count rows.

    Returns:
        Scores, float32 of shape (levels,).
    """
    from privacy_assets.generators._tree_kernels import count_levels

    counted = codes
    if subject_codes is not None:  # count each level of a subject once
        counted = np.unique(subject_codes * levels + codes) % levels
    group = np.bincount(counted, minlength=levels)
    weights = np.zeros(levels + 1)
    shares = np.zeros((levels + 1, n_classes if n_classes > 2 else 1))
    groups = count_levels(codes, goal, n_classes, smallest, group, weights, shares)
    if n_classes <= 2:
        return shares[:, 0].astype(np.float32)[group]
    shares = shares[:groups]
    root = np.sqrt(np.maximum(weights[:groups], 1.0))
    scaled = shares * root[:, None]
    if groups <= n_classes:  # use the smaller of the two matrices that share the component
        sizes, vectors = np.linalg.eigh(scaled @ scaled.T)
        scores = vectors[:, -1] * np.sqrt(max(sizes[-1], 0.0)) / root
    else:
        scores = shares @ np.linalg.eigh(scaled.T @ scaled)[1][:, -1]
    return scores.astype(np.float32)[group]


def _ranks(codes: np.ndarray, n_values: int) -> list[np.ndarray]:
    """Return tables float32 (n_values + 1,) of a number: its ranks, and an indicator if some are
    missing.
    """
    n_missing = int((codes == n_values).sum())
    sum_of_ranks = int(codes.sum()) - n_missing * n_values
    ranks = np.arange(n_values + 1, dtype=np.float32)
    ranks[n_values] = sum_of_ranks / max(len(codes) - n_missing, 1)
    if not n_missing:
        return [ranks]
    is_missing = np.zeros(n_values + 1, dtype=np.float32)
    is_missing[n_values] = 1
    return [ranks, is_missing]


def _intervals(codes: np.ndarray) -> np.ndarray:
    """Return the interval 0.._INTERVALS - 1 of each of the ``codes`` (n,); all have about equally
    many rows.
    """
    return np.searchsorted(np.sort(codes), codes) * _INTERVALS // len(codes)


def _positions(table: np.ndarray) -> np.ndarray:
    """Return the position int32 (n,) of each value of ``table`` among its distinct values."""
    order = np.argsort(table)
    ordered = table[order]
    positions = np.zeros(len(table), np.int32)
    positions[order[1:]] = np.cumsum(ordered[1:] > ordered[:-1])
    return positions


def _standardized(values: np.ndarray) -> np.ndarray:
    """Scale to mean 0 and standard deviation 1, for any magnitude; constants become 0."""
    largest = np.abs(values).max()
    scaled = values / largest if largest > 0 else values
    centered = scaled - _total(scaled) / len(scaled)
    deviation = np.sqrt(_total(centered * centered) / len(scaled))
    return centered / deviation if deviation > 0 else np.zeros(len(values))


def _total(values: np.ndarray) -> np.ndarray:
    """Sum over the first axis sequentially, so that ties between splits do not depend on the
    processor.
    """
    return np.cumsum(values, axis=0)[-1]
