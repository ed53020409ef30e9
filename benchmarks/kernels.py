"""What is written by hand, beside the library that does nearest to the same: CPU seconds of one thread, in one run.

    OMP_NUM_THREADS=1 python -m benchmarks.kernels tests/data/adult.parquet

Both sides get the same rows in the form that suits them, and take turns; each time is the least of ``--times``. A
warm-up on the same rows compiles. A library that does less than the kernel (no subjects, no ties by content, no
proof) is compared all the same, on a share of the rows where all would take too long.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

Work = Callable[[], object]
BRUTE = "scikit-learn, brute force"


class Row(NamedTuple):
    """A line of the table; ``share`` is that of our work which the library did."""

    kernel: str
    ours: Work
    peer: str
    theirs: Work
    share: float = 1.0


def inputs_of(path: str, rows: int):
    """Two tables of so many real rows as train and holdout, and as many others in place of synthetic ones."""
    from privacy_assets.evaluation import prepare_inputs
    from privacy_assets.tables.schema import infer_schema

    frame = pd.read_parquet(path).sample(3 * rows, random_state=0).reset_index(drop=True)
    parts = [frame[start : start + rows].reset_index(drop=True) for start in range(0, 3 * rows, rows)]
    return prepare_inputs(*parts, schema=infer_schema(frame))


def mixed(inputs) -> Iterator[Row]:
    """Searches of tables with numbers and categories; a library gets them one-hot."""
    from scipy.spatial import cKDTree
    from scipy.spatial.distance import cdist
    from sklearn.neighbors import NearestNeighbors

    from privacy_assets.neighbours.mixed_tree import MixedTree
    from privacy_assets.neighbours.nearest import distinct_encoded, nearest_rows, weight_within
    from privacy_assets.shadow.vulnerability import vulnerability
    from privacy_assets.tables.coding import Coding

    q, p = inputs.encoded("synthetic"), inputs.encoded("train")
    few, dense, name = q.dense[:1000], p.dense, "nearest, mixed columns"
    share, brute = len(few) / len(q), NearestNeighbors(n_neighbors=1, algorithm="brute").fit(dense)
    yield Row(name, lambda: nearest_rows(q, p), BRUTE, lambda: brute.kneighbors(few), share)
    yield Row(name, lambda: nearest_rows(q, p), "scipy cKDTree", lambda: cKDTree(dense).query(few), share)
    reach, tree = 1.0, MixedTree.build(distinct_encoded(p)[0])

    def within() -> object:
        return brute.radius_neighbors(few, reach, return_distance=False)

    yield Row("number within 1, mixed columns", lambda: weight_within(q, p, reach), BRUTE, within, share)
    yield Row("pairs within 1, mixed columns", lambda: list(tree.pairs(q, reach, 1_000_000)), BRUTE, within, share)
    coding = Coding.fit([inputs.train], inputs.schema)
    cells = coding.code(inputs.train)

    def by_matrix() -> object:
        numbers, codes = p.numeric[:1000], p.codes[:1000]
        distances = cdist(numbers, p.numeric, "cosine") + p.codes.shape[1] * cdist(codes, p.codes, "hamming")
        return np.partition(distances, 5, axis=1)[:, :6]

    yield Row("vulnerability, by cosine", lambda: vulnerability(cells, coding), "scipy cdist", by_matrix, 1000 / len(p))


def embedded(inputs, dims: int) -> Iterator[Row]:
    """The same kernels on embeddings, where a library has a tree too."""
    from scipy.spatial import cKDTree

    from privacy_assets.embedding.embedder import EmbedderSettings, train_embedder
    from privacy_assets.neighbours.mixed_tree import MixedTree
    from privacy_assets.neighbours.nearest import distinct_encoded, nearest, weight_within
    from privacy_assets.shadow.vulnerability import isolation
    from privacy_assets.tables.encoding import EncodedTable

    settings = EmbedderSettings(width=128, dims=dims, max_epochs=4)
    embedder = train_embedder([inputs.train], inputs.schema, settings, seed=0)
    one, other = embedder.embed(inputs.synthetic), embedder.embed(inputs.train)
    where = f"embedded in {dims}"
    yield Row(f"nearest, {where}", lambda: nearest(one, other), "scipy cKDTree", lambda: cKDTree(other).query(one))
    yield Row(f"vulnerability, {where}", lambda: isolation(one), "scipy cKDTree", lambda: cKDTree(one).query(one, 6))
    q, p = EncodedTable.of_numbers(one), EncodedTable.of_numbers(other)
    reach, tree = float(np.median(cKDTree(other).query(one)[0])), MixedTree.build(distinct_encoded(p)[0])

    def numbers() -> object:
        return cKDTree(other).query_ball_point(one, reach, return_length=True)

    def pairs() -> object:
        return cKDTree(other).sparse_distance_matrix(cKDTree(one), reach, output_type="ndarray")

    yield Row(f"number within a radius, {where}", lambda: weight_within(q, p, reach), "scipy cKDTree", numbers)
    yield Row(f"pairs within a radius, {where}", lambda: list(tree.pairs(q, reach, 1_000_000)), "scipy cKDTree", pairs)


def parts_of_rows(inputs) -> Iterator[Row]:
    """Match weights; the library counts the columns that agree, all of them alike."""
    from scipy.spatial.distance import cdist

    from privacy_assets.metrics.copies.match_weight import match_weights
    from privacy_assets.tables.coding import Coding

    real, released = [inputs.train, inputs.holdout], inputs.synthetic
    rows = np.arange(len(inputs.train) + len(inputs.holdout))
    coding = Coding.fit([*real, released], inputs.schema)
    known, others = coding.code(inputs.train).T[:1000], coding.code(released).T

    def agreeing() -> object:
        return cdist(known, others, "hamming").min(axis=1)

    yield Row("match weights", lambda: match_weights(real, released, rows), "scipy cdist", agreeing, 1000 / len(rows))


def attacks(inputs) -> Iterator[Row]:
    """Attribute inference and spherelets."""
    from scipy.spatial.distance import cdist
    from sklearn.neighbors import NearestNeighbors

    from privacy_assets.metrics.attribute_inference import _kernels as kernels
    from privacy_assets.metrics.attribute_inference.attacks import Targets, Trial
    from privacy_assets.neighbours.spherelets import Spherelets, divergences

    trial = Trial.of(inputs, Targets.choose(inputs, 1000))
    slack = (len(trial.category) + 4) * float(np.finfo(np.float32).eps)
    given = (trial.queries, trial.points, trial.category, trial.start, slack)
    queries, points = inputs.encoded("holdout").dense[: trial.queries.shape[1]], inputs.encoded("synthetic").dense
    width = len(trial.start) - 1

    def each_left_out() -> None:
        for column in range(width):  # of as many one-hot columns, near enough
            kept = np.arange(points.shape[1]) % width != column
            NearestNeighbors(n_neighbors=5, algorithm="brute").fit(points[:, kept]).kneighbors(queries[:, kept])

    yield Row("nearest by all columns but each", lambda: kernels.nearest_without(*given, 5), BRUTE, each_left_out)
    g = np.random.default_rng(0)
    known = g.permuted(np.tile(np.arange(width), (trial.queries.shape[1], 1)), axis=1)[:, :3]

    def by_rows() -> None:
        for row in range(100):
            parts = np.isin(np.arange(points.shape[1]) % width, known[row])
            np.argpartition(cdist(queries[row : row + 1, parts], points[:, parts], "sqeuclidean")[0], 5)

    name = "nearest by 3 columns of each row's own"
    yield Row(name, lambda: kernels.nearest_by(*given, known, 5), "scipy cdist", by_rows, 100 / len(known))
    train = inputs.encoded("train")
    one = Spherelets.fit(inputs.encoded("synthetic").take(np.s_[:2000]), train, 20, 2)
    pairs = g.integers(0, len(one.unique), (20_000, 2))
    dense = train.dense

    def by_pairs() -> None:
        for a, b in pairs[:2000]:
            squared = cdist(dense[one.rows[a]], dense[one.rows[b]], "sqeuclidean")
            for side, other in ((squared, b), (squared.T, a)):
                offset, radius = one.spheres[other, :2]
                away = np.sqrt(np.maximum(side @ one.weights[other] - offset, 0)) - radius
                float(away @ away)

    yield Row("spherelets", lambda: divergences(one, one, train, pairs), "scipy cdist", by_pairs, 2000 / len(pairs))


def shadows(inputs) -> Iterator[Row]:
    """What an audit repeats thousands of times: generators, queries and forests, on sets of 1,000 rows."""
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.metrics import mutual_info_score
    from sklearn.tree import DecisionTreeClassifier

    from privacy_assets.generators import build_generator
    from privacy_assets.shadow._attention_kernels import closest_unique, target_distances
    from privacy_assets.shadow.forest import Forest
    from privacy_assets.shadow.queries import Queries, matches
    from privacy_assets.stats.subjects import random_sets
    from privacy_assets.tables.coding import Coding

    coding = Coding.fit([inputs.train], inputs.schema)
    cells = np.nan_to_num(coding.code(inputs.train))
    g, rows = np.random.default_rng(0), np.arange(1000)
    columns = len(cells)
    ranks = np.stack([np.unique(column, return_inverse=True)[1] for column in cells])

    def trees() -> None:
        for column in range(1, columns):
            DecisionTreeClassifier(min_samples_leaf=50).fit(ranks[:column].T, np.minimum(ranks[column], 63))

    synthpop, name = build_generator("synthpop", {}), "scikit-learn DecisionTreeClassifier"
    yield Row("sequential trees", lambda: synthpop.fit(inputs.train, seed=0), name, trees)
    draw = build_generator("baynet", {}).drawer(cells, coding)
    binned = np.minimum(ranks[:, rows], 9)

    def pairwise() -> None:
        for one in range(columns):
            for other in range(one):
                mutual_info_score(binned[one], binned[other])

    name = "Bayesian network of 1,000 rows, learnt and drawn"
    yield Row(name, lambda: draw(rows, 1000, 0), "scikit-learn mutual_info_score", pairwise)
    codes = g.integers(0, 40, (2000, 4000)).astype(np.uint8)
    member = g.random(4000) < 0.5
    codes[:50] += (10 * member).astype(np.uint8)
    forest = RandomForestClassifier(100, max_depth=10, random_state=0)
    name = "forest on 4,000 sets of 2,000 counts"
    usable = np.arange(2000)
    library = "scikit-learn RandomForestClassifier"
    yield Row(name, lambda: Forest.fit(codes, member, usable, g), library, lambda: forest.fit(codes.T, member))
    is_number, target = coding.is_number, cells[:, 0]
    held = np.ascontiguousarray(cells[:, :1000])

    def superset_sums() -> object:
        agree = np.where(is_number[:, None], held <= target[:, None], held == target[:, None])
        counts = np.bincount((1 << np.arange(columns)) @ agree, minlength=1 << columns).astype(np.int16)
        for column in range(columns):
            halves = counts.reshape(-1, 2, 1 << column)
            halves[:, 0] += halves[:, 1]
        return counts

    name = "counts of all sets of 15 columns in 1,000 rows"
    every = Queries(columns, np.arange(1 << columns))
    yield Row(name, lambda: every.counts(matches(held, target, is_number)[None]), "numpy", superset_sums)

    def unique_rows() -> object:
        found, counts = np.unique(held, axis=1, return_counts=True)
        numbers = found[is_number]
        norms = np.linalg.norm(numbers, axis=0) * np.linalg.norm(target[is_number])
        cosine = target[is_number] @ numbers / np.maximum(norms, 1e-300)
        distances = (
            1 - ((found[~is_number] == target[~is_number, None]).sum(axis=0) + is_number.sum() * cosine) / columns
        )
        return np.argsort(distances, kind="stable")[:100], counts

    name = "100 nearest different rows of 1,000"
    yield Row(name, lambda: closest_unique(held, target_distances(held, target, is_number), 100), "numpy", unique_rows)
    halves = np.tile(np.arange(10_000) < 5_000, (64, 1))
    name = "64 random halves of 10,000 people"
    yield Row(name, lambda: random_sets(10_000, 5_000, g), "numpy", lambda: g.permuted(halves, axis=1))


def spent(work: Work, least: float = 0.02) -> float:
    """CPU seconds of ``work``, repeated until they can be measured."""
    times, start = 0, time.process_time()
    while times == 0 or time.process_time() - start < least:
        work()
        times += 1
    return (time.process_time() - start) / times


def _every(inputs) -> Iterator[Row]:
    yield from mixed(inputs)
    yield from embedded(inputs, 10)
    yield from embedded(inputs, 30)
    yield from parts_of_rows(inputs)
    yield from attacks(inputs)
    yield from shadows(inputs)


def main() -> None:
    """Print the table of benchmarks/results/kernels.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", help="a Parquet file")
    parser.add_argument("--rows", type=int, default=10_000, help="of each table")
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    inputs = inputs_of(options.table, options.rows)
    print("| kernel | CPU s | library | CPU s | times faster |\n|---|---|---|---|---|")
    for row in _every(inputs):
        row.ours()
        turns = [(spent(row.ours), spent(row.theirs) / row.share) for _ in range(options.times)]
        ours, theirs = np.min(turns, axis=0)
        print(f"| {row.kernel} | {ours:.2g} | {row.peer} | {theirs:.2g} | {theirs / ours:.1f} |", flush=True)


if __name__ == "__main__":
    main()
