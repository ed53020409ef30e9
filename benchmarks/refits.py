"""Settle whether a generator leaks: fit it with and without the attacked people, and compare the
statistics.

    python -m benchmarks.refits --results refits.jsonl DIRECTORY/*.parquet
    python -m benchmarks.refits --report refits.jsonl

:mod:`benchmarks.leak_tables` writes the tables. Three disjoint groups of people are drawn: train,
others and holdout. Rare values are replaced as in a pipeline. A generator is fitted on train and on
the others, and both releases are evaluated against the same train and holdout. The release of the
others cannot disclose train, so its statistics are the null. A generator leaks on a table if, over
all draws, the mean of one of the statistics below is higher with the people than without them by
more than ``CLEAR`` standard errors. Limits on foreign values are left out, because the others have
values that the real tables lack. Each draw is one line of the results and is measured once.

``sdv`` is a package that is not installed with this project, and its rows are skipped without it.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtr, ndtri

from benchmarks.copies import table_of
from benchmarks.leaks import FEWEST, MEASURED, WHO, as_in_a_pipeline, judged, measured_on
from benchmarks.study import SEVERAL, append, lines, run_or_report, study_parser
from privacy_assets.evaluation.reading import build_inputs
from privacy_assets.generators import build_generator
from privacy_assets.metrics.policies import default_policy
from privacy_assets.tables.canonical import synthetic_table
from privacy_assets.tables.column import ranked
from privacy_assets.tables.declared import Declared
from privacy_assets.tables.table import Table, subject_codes_of

CLEAR = 2.5
_MISSING = "(missing)"
STATISTICS = (
    "copies.copied_share",
    "copies.changed_share",
    "copies.partial_excess",
    "dcr.member_excess_any",
    "singling_out.risk",
    "linkability.excess",
    "attribute_inference.excess",
    "membership_inference.advantage_any",
)
# Map a table without rare values and a seed to equally many synthetic rows.
Maker = Callable[[Table, int], pd.DataFrame]


def ours(name: str, **settings: Any) -> Maker:
    """Return a generator of this project."""

    def make(table: Table, seed: int) -> pd.DataFrame:
        fitted = build_generator(name, settings).fit(
            table, seed=seed, subject_codes=subject_codes_of([table])
        )
        return fitted.sample(len(table), seed=seed).without_rare(table.rules).to_published_frame()

    return make


def copula(knots: int | None = None) -> Maker:
    """Return a Gaussian copula whose margins are the order statistics of train, or quantiles at
    ``knots``.
    """

    def make(table: Table, seed: int) -> pd.DataFrame:
        rows, rng = table.to_published_frame(), np.random.default_rng(seed)
        kept = [rows[name].sort_values(na_position="first", ignore_index=True) for name in rows]
        codes = [rows[name].rank(na_option="top", method="min").to_numpy() - 1 for name in rows]
        ties = [
            rows[name].map(rows[name].value_counts()).fillna(rows[name].isna().sum()).to_numpy()
            for name in rows
        ]
        uniform = np.array(
            [
                (low + rng.random(len(rows)) * tied) / len(rows)
                for low, tied in zip(codes, ties, strict=True)
            ]
        )
        related = np.nan_to_num(np.corrcoef(ndtri(np.clip(uniform, 1e-9, 1 - 1e-9))), nan=0.0)
        np.fill_diagonal(related, 1.0)
        drawn = ndtr(
            rng.multivariate_normal(
                np.zeros(len(related)), related, size=len(rows), method="eigh"
            ).T
        )
        columns = {}
        for name, ordered, at in zip(rows, kept, drawn, strict=True):
            place = np.minimum((at * len(rows)).astype(int), len(rows) - 1)
            if (
                knots is not None
                and pd.api.types.is_numeric_dtype(ordered)
                and ordered.nunique() > knots
            ):
                known = ordered.dropna()
                values = np.quantile(known, np.linspace(0, 1, knots))
                own = (at * len(rows) - (len(rows) - len(known))) / len(known)
                cells = pd.Series(np.interp(own, np.linspace(0, 1, knots), values)).where(own >= 0)
                columns[name] = cells.round() if (known % 1 == 0).all() else cells
            else:
                columns[name] = ordered.iloc[place].reset_index(drop=True)
        return pd.DataFrame(columns).astype(rows.dtypes.to_dict())

    return make


def sdv_copula(table: Table, seed: int) -> pd.DataFrame:
    """Draw from the Gaussian copula of SDV with its default settings. A missing category is a level
    of its own.
    """
    from sdv.metadata import Metadata
    from sdv.single_table import GaussianCopulaSynthesizer

    rows = table.to_published_frame()
    np.random.seed(seed)  # noqa: NPY002 - the library draws from the global generator
    numbers = [name for name in rows if pd.api.types.is_numeric_dtype(rows[name])]
    kinds = {name: {"sdtype": "numerical" if name in numbers else "categorical"} for name in rows}
    made = GaussianCopulaSynthesizer(
        Metadata.load_from_dict({"tables": {"table": {"columns": kinds}}})
    )
    texts = rows.columns.difference(numbers)
    made.fit(
        rows.assign(
            **{
                name: rows[name].astype(object).where(rows[name].notna(), _MISSING)
                for name in texts
            }
        )
    )
    drawn: pd.DataFrame = made.sample(len(rows))
    drawn = drawn.assign(
        **{name: drawn[name].where(drawn[name] != _MISSING, None) for name in texts}
    )
    return drawn.astype(rows.dtypes.to_dict())


MAKERS: Mapping[str, Maker] = {
    "Gaussian copula": copula(),
    "Gaussian copula, 41 knots": copula(41),
    "default": ours("synthpop"),
    "trees, leaf 100": ours("synthpop", min_samples_leaf=100, shrinkage=0),
    "trees, leaf 200": ours("synthpop", min_samples_leaf=200, shrinkage=0),
    "Bayesian network": ours("baynet"),
    **({"SDV": sdv_copula} if find_spec("sdv") else {}),
}


def classifier_advantage(real: Mapping[str, Table], synthetic: Table, seed: int) -> float:
    """Return the advantage of an attack that no limit uses: gradient boosting of synthetic against
    unseen rows.

    Half of the people in holdout are the unseen rows to learn from. Train and the other half are
    scored by the probability that they are synthetic. Returns 2 AUC - 1.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import roc_auc_score

    train, holdout = real["train"], real["holdout"]
    codes = subject_codes_of([holdout])
    people = np.arange(len(holdout)) if codes is None else codes
    learned = np.random.default_rng(seed).permutation(people.max() + 1)[people] % 2 == 0
    parts = [
        train,
        holdout.take(np.flatnonzero(~learned)),
        holdout.take(np.flatnonzero(learned)),
        synthetic,
    ]
    cells = np.array(
        [
            np.concatenate(ranked([part[name] for part in parts])[0])
            for name in synthetic.schema.names
        ]
    ).T
    own, others, unseen, made = np.split(
        cells.astype(float), np.cumsum([len(part) for part in parts])[:-1]
    )
    label = np.repeat([0, 1], [len(unseen), len(made)])
    model = HistGradientBoostingClassifier(max_iter=60, random_state=seed).fit(
        np.vstack([unseen, made]), label
    )
    scores = model.predict_proba(np.vstack([own, others]))[:, 1]
    return 2 * float(roc_auc_score(np.repeat([1, 0], [len(own), len(others)]), scores)) - 1


def drawn(
    frame: pd.DataFrame,
    whose: np.ndarray,
    people: int,
    maker: Maker,
    seed: int,
    metrics: Sequence[str],
) -> dict[str, Any]:
    """Return the estimates of one draw, with and without the people of train."""
    place = np.random.default_rng(seed).permutation(whose.max() + 1)[whose] // people
    frames = {
        role: frame[place == group].assign(**{WHO: whose[place == group]}).reset_index(drop=True)
        for group, role in enumerate(("train", "others", "holdout"))
    }
    real = as_in_a_pipeline(frames)
    attacked = {role: real[role] for role in ("train", "holdout")}
    found = {}
    for name, source in (("with", real["train"]), ("without", real["others"])):
        synthetic = synthetic_table(
            maker(source, seed), source.schema, Declared(subject=WHO), train=source
        )
        found[name] = measured_on(build_inputs(attacked, synthetic, seed=seed), metrics)
        found[name]["classifier"] = classifier_advantage(attacked, synthetic, seed)
    return found


def run(options: argparse.Namespace) -> None:
    """Measure the draws that the results do not contain yet."""
    held = {(line["table"], line["maker"], line["seed"]) for line in lines(options.results)}
    for seed in range(options.draws):
        for file in options.tables:
            frame, whose = table_of(file, None)
            people = min(int(whose.max() + 1) // 3, options.people)
            for name in options.makers or MAKERS:
                key = {"table": Path(file).stem, "maker": name, "seed": seed}
                if people < FEWEST or tuple(key.values()) in held:
                    continue
                line = {
                    **key,
                    "people": people,
                    **drawn(frame, whose, people, MAKERS[name], seed, options.metrics),
                }
                append(options.results, line)
                sys.stderr.write(f"{', '.join(map(str, key.values()))}\n")


def effects(found: Sequence[Mapping[str, Any]], statistic: str) -> tuple[float, float, float]:
    """Return the mean of a statistic with the people and without them, and the z value of the
    difference.
    """
    pairs = np.array(
        [
            [line[side]["estimates"].get(statistic, [np.nan])[0] for side in ("with", "without")]
            for line in found
        ],
        float,
    )
    apart = pairs[:, 0] - pairs[:, 1]
    error = apart.std(ddof=1) / np.sqrt(len(apart)) if len(apart) > 1 else np.nan
    return *pairs.mean(axis=0).tolist(), float(apart.mean() / error) if error > 0 else float(
        apart.mean() > 0
    )


def report_text(found: Sequence[Mapping[str, Any]]) -> str:
    """Return Markdown: refused releases of each generator by whether it leaks on the table, and a
    line for each.
    """
    limits = [
        limit
        for limit in default_policy().limits
        if limit.statistic != "value_disclosure.foreign_cells"
    ]
    policy = default_policy().restricted(limits)
    cells: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for line in found:
        cells[line["maker"], line["table"]].append(line)
    refused: dict[str, np.ndarray] = defaultdict(lambda: np.zeros((3, 2), int))
    out = [
        "| generator, table | refused, fitted on train | on others | partial advantage, train |"
        " others "
        "| classifier, train | others | clearest, z |"
    ]
    out.append("|---|---|---|---|---|---|---|---|")
    for (maker, table), draws in sorted(cells.items()):
        fails = {
            side: [judged(line[side], policy).status == "fail" for line in draws]
            for side in ("with", "without")
        }
        clear = {statistic: effects(draws, statistic)[2] for statistic in STATISTICS}
        most = max(clear, key=lambda statistic: np.nan_to_num(clear[statistic]))
        own = effects(draws, "copies.partial_excess")
        other = [
            np.mean([line[side]["classifier"] for line in draws]) for side in ("with", "without")
        ]
        leaks = int(clear[most] > CLEAR)
        refused[maker][leaks] += sum(fails["with"]), len(draws)
        refused[maker][2] += sum(fails["without"]), len(draws)
        shares = " | ".join(f"{sum(fails[side])} of {len(draws)}" for side in fails)
        means = " | ".join(f"{mean:.3f}" for mean in (*own[:2], *other))
        out.append(f"| {maker}, {table} | {shares} | {means} | `{most}` {clear[most]:.1f} |")
    table_lines = [
        "| generator | refused where it leaks | refused where no leak is clear | refused"
        " without the people |"
    ]
    table_lines.append("|---|---|---|---|")
    for maker, counts in refused.items():
        shares = " | ".join(f"{failed} of {total}" for failed, total in counts[[1, 0, 2]])
        table_lines.append(f"| {maker} | {shares} |")
    return "\n".join([*table_lines, "", *out]) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run or report."""
    parser = study_parser(__doc__, "refits.jsonl")
    parser.add_argument("tables", nargs="*", help=SEVERAL)
    parser.add_argument(
        "--people", type=int, default=2_000, help="in train; a third of all at most"
    )
    parser.add_argument("--draws", type=int, default=8, help="draws of each table and generator")
    parser.add_argument("--makers", nargs="+", choices=MAKERS, help="these alone")
    parser.add_argument(
        "--metrics", nargs="+", choices=MEASURED, default=MEASURED, help="these alone"
    )
    run_or_report(parser, arguments, run, lambda options, found: report_text(found))


if __name__ == "__main__":
    main()
