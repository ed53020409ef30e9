"""Which table of which metric is drawn how, and what the caption says."""

from __future__ import annotations

from collections.abc import Callable

from privacy_assets.report.bars import bars_svg
from privacy_assets.report.memorization_drawings import alpha_plots
from privacy_assets.report.pie import pie_svg
from privacy_assets.report.plots import Rows, as_number, curves_svg, intervals_svg, lines_svg
from privacy_assets.report.text import clean

Plot = tuple[str, str]  # caption, SVG


def plots_of(metric: str, table: str, rows: Rows) -> list[Plot]:
    """Caption and SVG of each plot of a table, the SVG empty where nothing can be drawn; none for unknown tables."""
    known: dict[tuple[str, str], Callable[[Rows], list[Plot]]] = {
        ("dcr", "distances"): _distances,
        ("dcr", "tails"): _tails,
        ("singling_out", "configurations"): _configurations,
        ("linkability", "sets"): _sets,
        ("attribute_inference", "columns"): _columns,
        ("membership_inference", "curve"): _curve,
        ("membership_inference", "levels"): _levels,
        ("membership_inference", "subgroups"): _subgroups,
        ("memorization", "alpha"): alpha_plots,
        ("vulnerability", "scores"): _ranks,
        ("shadow_membership", "records"): _attacked,
        ("shadow_membership", "roc"): _roc,
    }
    draw = known.get((metric, table))
    return draw(rows) if draw is not None else []


def _distances(rows: Rows) -> list[Plot]:
    curves = {"srd": "synthetic to training (SRD)", "rrd": "holdout to training (RRD)"}
    spaces = dict.fromkeys(row.get("space") for row in rows)
    return [
        (
            f"Distance to the nearest training row, {clean(space, 40)} space. A leak shows as a synthetic curve that "
            "rises before the holdout curve: synthetic rows lie closer to training rows than unseen people do.",
            curves_svg([r for r in rows if r.get("space") == space], curves, "quantile", ("distance", "share of rows")),
        )
        for space in spaces
    ]


def _tails(rows: Rows) -> list[Plot]:
    caption = (
        "Member excess among the closest synthetic rows: share of matched real rows from training, beyond what chance "
        "gives. Zero is no leak; both directions give members away."
    )
    labels = ("share of closest synthetic rows", "member excess")
    return [(caption, intervals_svg(rows, x="tail", y="excess", series=("space", "key"), labels=labels))]


def _configurations(rows: Rows) -> list[Plot]:
    caption = (
        "Singling-out risk by number of columns in the query: 0 when members are hit no more often than chance gives, "
        "1 when every query hits one."
    )
    labels = ("columns in the query", "risk")
    return [(caption, intervals_svg(rows, x="columns", y="risk", series=("attack",), labels=labels))]


def _sets(rows: Rows) -> list[Plot]:
    caption = (
        "Excess of members over unseen people whose halves are joined, by pair of column sets. Zero is chance; both "
        "directions give members away."
    )
    labels = ("pair of column sets", "excess")
    return [(caption, intervals_svg(rows, x="sets", y="excess", series=(), labels=labels))]


def _curve(rows: Rows) -> list[Plot]:
    caption = (
        "Membership advantage: share of members found, minus the share of non-members wrongly taken for members, at "
        "each rate of false alarms. Zero is guessing."
    )
    labels = ("false positive rate (logarithmic)", "advantage")
    return [(caption, intervals_svg(rows, x="fpr", y="advantage", series=("score",), labels=labels, log=True))]


def _columns(rows: Rows) -> list[Plot]:
    caption = (
        "Attribute inference protection by column: 100 when members are guessed no better than other people, 0 when "
        "they are always guessed. The colour is the grade, Poor to Excellent, cut at 20, 40, 60 and 80; columns of low "
        "weight move by chance."
    )
    return [(caption, bars_svg(rows, "column", "points"))]


def _levels(rows: Rows) -> list[Plot]:
    caption = (
        "Protection level reached by each simulated membership attack, after Gretel. Unavailable: fewer than 50 people "
        "named, too few to tell a precision."
    )
    return [(caption, pie_svg(rows))]


def _subgroups(rows: Rows) -> list[Plot]:
    caption = (
        "Membership advantage in each declared subgroup, where its evidence is strongest; intervals hold for all of "
        "them together. Zero is guessing."
    )
    labels = ("group, the largest first", "advantage")
    return [(caption, intervals_svg(rows, x="group", y="advantage", series=("column",), labels=labels))]


def _ranks(rows: Rows) -> list[Plot]:
    labels = ("rank (logarithmic)", "vulnerability")
    return [
        (
            f"Mean distance to the nearest records of other people, by rank, {clean(space, 40)} space: who stands far "
            "above the rest is easiest to attack.",
            intervals_svg(
                [r for r in rows if r.get("space") == space],
                x="rank", y="vulnerability", series=(), labels=labels, log=True,
            ),
        )
        for space in dict.fromkeys(row.get("space") for row in rows)
    ]  # fmt: skip


def _attacked(rows: Rows) -> list[Plot]:
    caption = (
        "How often the attack tells a synthetic table made with the record from one made without it. The line at 0.5 "
        "is guessing, 1 is always; each interval is for its record alone."
    )
    labels = ("record, the most vulnerable first", "AUC")
    return [(caption, intervals_svg(rows, x="record", y="auc", series=("role",), labels=labels, null=0.5))]


def _roc(rows: Rows) -> list[Plot]:
    names = {"all": "all records", "worst": "the record told most easily", "fpr": "guessing"}
    curves = {
        label: [(as_number(row.get("fpr")), as_number(row.get(column))) for row in rows if row.get(column) is not None]
        for column, label in names.items()
    }
    labels = ("false alarms: share of tables without the record", "recognised: share of tables with it")
    whole = (
        "Tables with the record that are recognised, by the share of false alarms that is allowed. Above the line of "
        "guessing, membership shows."
    )
    zoom = "The same on logarithmic axes: a few that are recognised without a false alarm weigh more than the average."
    return [(whole, lines_svg(curves, labels)), (zoom, lines_svg(curves, labels, log=True))]
