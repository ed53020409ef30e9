"""What releases of known truth show: the measurements behind the default limits.

    python -m benchmarks.tolerances adult.parquet --splits 10

Per release and limit: mean value, the demonstrated end of the interval (0 when the interval covers the null), and how
many splits held the limit. 8,000 train, 2,000 holdout, 2,000 reference and 8,000 synthetic rows; no embedding.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pandas as pd

from privacy_assets.engine.evaluation import choose_metrics, prepare_inputs, run_metrics
from privacy_assets.engine.generators import build_generator
from privacy_assets.engine.geometry.neighbours import nearest
from privacy_assets.engine.inputs import silent
from privacy_assets.engine.tables.encoding import Encoder
from privacy_assets.engine.tables.schema import TableSchema, conform, infer_schema

ROWS, UNSEEN = 8_000, 2_000


def releases(
    schema: TableSchema, train: pd.DataFrame, holdout: pd.DataFrame, fresh: pd.DataFrame, seed: int
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Name and rows of each release."""
    rng = np.random.default_rng(seed)
    learnt = conform(train, schema, where="train")
    trees = build_generator("synthpop", {}).fit(learnt, schema, seed=seed, device="cpu", progress=silent)
    yield "honest trees, leaf 50", trees.sample(ROWS, seed=seed)
    yield "fresh rows", fresh
    yield "5 % copies", beside(train.sample(ROWS // 20, random_state=seed), fresh)
    yield "20 % jittered copies", beside(jittered(train.sample(ROWS // 5, random_state=seed), schema, rng), fresh)
    yield (
        "20 % copies, a column redrawn",
        beside(redrawn(train.sample(ROWS // 5, random_state=seed), train, rng), fresh),
    )
    poor = fresh.apply(lambda column: column.to_numpy()[rng.permutation(len(column))])
    yield "10 % copies among poor rows", beside(train.sample(ROWS // 10, random_state=seed), poor)
    encoder = Encoder.fit([learnt, conform(holdout, schema, where="holdout")], schema)
    rows = {name: encoder.transform(conform(x, schema, where=name)).dense for name, x in [("t", train), ("f", fresh)]}
    away = nearest(rows["f"], rows["t"], 1).distances[:, 0]
    yield "rows near train dropped", fresh[away > np.quantile(away, 0.1)]
    alone = np.argsort(-nearest(rows["t"], rows["t"], 1, exclude_self=True).distances[:, 0])[:40]
    yield "40 jittered copies, isolated", beside(jittered(train.iloc[alone], schema, rng), fresh)


def beside(leaked: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """The leaked rows with others up to the size of the release."""
    return pd.concat([leaked, others.iloc[len(leaked) :]], ignore_index=True)


def jittered(rows: pd.DataFrame, schema: TableSchema, rng: np.random.Generator) -> pd.DataFrame:
    """Numbers moved by 0.1 standard deviations, rounded and clipped to what the column holds."""
    out = rows.reset_index(drop=True)
    for name in schema.of_kind("integer", "numeric"):
        moved = out[name] + rng.normal(0, 0.1 * out[name].std(), len(out))
        moved = moved.clip(out[name].min(), out[name].max())
        out[name] = moved.round().astype(out[name].dtype) if schema[name].kind == "integer" else moved
    return out


def redrawn(rows: pd.DataFrame, pool: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """One column of each row drawn anew."""
    out = rows.reset_index(drop=True)
    chosen = rng.integers(0, out.shape[1], len(out))
    for position, name in enumerate(out.columns):
        mine = np.flatnonzero(chosen == position)
        out.loc[mine, name] = pool[name].to_numpy()[rng.integers(0, len(pool), len(mine))]
    return out


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", help="a Parquet file of at least 20,000 rows")
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--drop", action="append", default=[], help="a column to leave out, such as an id (repeatable)")
    parser.add_argument("--as-text", action="store_true", help="every column is a category")
    options = parser.parse_args()
    frame = pd.read_parquet(options.table).drop(columns=options.drop)
    frame = frame.astype(str) if options.as_text else frame
    schema = infer_schema(frame)
    metrics, policy = choose_metrics(None, None)
    seen = defaultdict(list)
    for seed in range(options.splits):
        mixed = frame.sample(frac=1, random_state=seed).reset_index(drop=True)
        cuts = np.cumsum([ROWS, UNSEEN, UNSEEN, ROWS])
        train, holdout, reference, fresh = (mixed[a:b] for a, b in zip([0, *cuts[:-1]], cuts, strict=True))
        for name, release in releases(schema, train, holdout, fresh, seed):
            inputs = prepare_inputs(train, holdout, release, reference, schema=schema, seed=seed)
            for outcome in policy.judge(run_metrics(inputs, metrics)).outcomes:
                seen[name, outcome.limit.key].append((outcome.figure, outcome.passed))
    for (name, limit), found in seen.items():
        values = [figure.value for figure, _ in found]
        ends = [max(figure.low - figure.null, figure.null - figure.high, 0.0) for figure, _ in found]
        held = sum(passed for _, passed in found)
        print(
            f"{name:30} {limit:48} mean {np.mean(values):8.4f}  shown at most {max(ends):.4f}  held {held}/{len(found)}"
        )


if __name__ == "__main__":
    main()
