"""Presents the comparison as a table, as CSV and as one HTML page."""

import csv
import statistics
from html import escape

from . import charts, measure

COLUMNS = (
    ("round_ms", "ms/round", "{:.1f}"),
    ("ideal_ms", "ideal ms", "{:.1f}"),
    ("of_ideal", "of ideal", "{:.2f}"),
    ("samples_per_s", "samples/s", "{:.0f}"),
    ("wall_s", "wall s", "{:.1f}"),
    ("accuracy", "accuracy", "{:.2%}"),
    ("seconds_to_target", "s to target", "{:.1f}"),
    ("moved", "moved", "{:.0f}"),
    ("requeued", "requeued", "{:.0f}"),
    ("dropped", "dropped", "{:.0f}"),
    ("errors", "counting errors", "{:d}"),
)

COLOURS = ("#7b8794", "#2f7ed8", "#e08214", "#2b9348", "#d6336c", "#7048e8", "#0c8599", "#a9640b", "#495057", "#c92a2a", "#f06595", "#74b816")

STYLE = """
:root{--ink:#1b1f24;--soft:#5b6470;--paper:#fff;--card:#f6f7f9;--grid:#dfe3e8}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ee;--soft:#9aa4b1;--paper:#15181c;--card:#1d2126;--grid:#333a43}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:1320px;margin:2rem auto;padding:0 1.2rem}
h1{font-size:1.6rem;margin:0 0 .2rem}h2{margin:2.2rem 0 .4rem;font-size:1.25rem}h3{font-size:1rem;margin:.2rem 0 .4rem}p{max-width:60rem}
.about{color:var(--soft)}.badge{background:#b45309;color:#fff;border-radius:.3rem;padding:.05rem .45rem;font-size:.8rem;vertical-align:middle}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin:.5rem 0}th,td{padding:.22rem .7rem;text-align:right;border-bottom:1px solid var(--grid)}
th:first-child,td:first-child{text-align:left}th{color:var(--soft);font-weight:600}tr.best td:first-child{font-weight:700}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(400px,1fr));gap:1rem}.card{background:var(--card);border-radius:.6rem;padding:.8rem 1rem;overflow-x:auto}
svg{width:100%;height:auto;display:block}text{fill:var(--soft);font:11px system-ui,sans-serif}.grid{stroke:var(--grid)}.mark{stroke:var(--ink);stroke-width:1.2}
.reference{stroke:var(--ink);stroke-dasharray:4 4}.line{fill:none;stroke-width:1.8}.legend{display:flex;flex-wrap:wrap;gap:.2rem 1rem;margin:.3rem 0 .6rem;color:var(--soft)}
.legend i{display:inline-block;width:.8rem;height:.8rem;border-radius:.2rem;margin-right:.35rem;vertical-align:-1px}code{background:var(--card);padding:.1rem .3rem;border-radius:.3rem}
.p0{fill:#2f7ed8}.p1{fill:#e08214}.p2{fill:#c3c9d1}.unit0{fill:#2f7ed8}.unit1{fill:#79aeea}.moved{fill:#d6336c}.exchange{fill:#e08214}
""" + "".join(
    f".s{i}{{fill:{c}}}.l{i}{{stroke:{c}}}.k{i}{{background:{c}}}"
    for i, c in enumerate(COLOURS))


def cell(value, form):
    return "–" if value is None else form.format(value)


def text_table(rows):
    """Makes the table of rows: {pattern: {policy: row}}."""
    lines = []
    for pattern, policies in rows.items():
        header = [pattern] + [title for _, title, _ in COLUMNS]
        body = [[policy] + [cell(row[key], form) for key, _, form in COLUMNS] for policy, row in policies.items()]
        widths = [max(len(line[i]) for line in [header] + body) for i in range(len(header))]
        for line in [header] + body:
            lines.append("  ".join(text.ljust(w) if i == 0 else text.rjust(w) for i, (text, w) in enumerate(zip(line, widths))))
        lines.append("")
    return "\n".join(lines)


def write_csv(path, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        keys = ["runs", "rounds", "loss"] + [key for key, _, _ in COLUMNS]
        out.writerow(["pattern", "policy"] + keys)
        for pattern, policies in rows.items():
            for policy, row in policies.items():
                out.writerow([pattern, policy] + ["" if row[key] is None else row[key] for key in keys])


def html_table(policies):
    head = "".join(f"<th>{escape(title)}</th>" for _, title, _ in COLUMNS)
    rates = [row["samples_per_s"] for row in policies.values()]
    body = ""
    for policy, row in policies.items():
        best = ' class="best"' if row["samples_per_s"] == max(rates) else ""
        body += f"<tr{best}><td>{escape(policy)}</td>" + "".join(f"<td>{cell(row[key], form)}</td>" for key, _, form in COLUMNS) + "</tr>"
    return f"<table><tr><th>policy</th>{head}</tr>{body}</table>"


def gantt_of(run, title, rounds=3):
    """A timeline of a few rounds from the middle of the run."""
    first = max(1, len(run.rounds) // 2 - rounds // 2)
    chosen = run.rounds[first:first + rounds]
    begin = run.rounds[first - 1]["times"]["commit"]
    spans, marks = [], []
    for record in chosen:
        moved = measure.moved_units(record)
        for index, unit in enumerate(sorted(record["units"], key=lambda u: u["start"])):
            taken = unit["range"][0] in moved  # the first one of units that were computed together
            spans.append((unit["worker"], unit["start"], unit["end"], "moved" if taken else f"unit{index % 2}",
                          f"round {record['round']}: samples {unit['range'][0]} to {unit['range'][1]}, {1e3 * (unit['end'] - unit['start']):.1f} ms"
                          + (", moved here" if taken else "")))
        for worker, ready in record["times"]["ready"].items():
            delivered = record["times"]["delivered"].get(worker)
            if delivered is not None and delivered > ready:
                spans.append((int(worker), ready, delivered, "exchange", f"delivering {1e3 * (delivered - ready):.1f} ms"))
        marks.append((record["times"]["commit"], f"commit {record['round']}"))
    return charts.gantt(title, run.workers, spans, marks, begin, chosen[-1]["times"]["commit"])


def pattern_section(name, specs, series, runs, rows):
    """series: those of the page; a policy without a run under this pattern keeps its colour."""
    colours = [(index, policy) for index, policy in enumerate(series) if policy in rows]
    typical = {policy: measure.median_run(runs[policy]) for _, policy in colours}
    cards = []

    def card(title, body):
        cards.append(f'<div class="card"><h3>{escape(title)}</h3>{body}</div>')

    losses, moved, contributors = [], [], []
    for index, policy in colours:
        run = typical[policy]
        window = max(1, len(run.rounds) // 100)
        records = run.rounds
        if any(r["loss"] for r in records):
            losses.append((policy, index, [(records[i]["times"]["commit"], statistics.mean(r["loss"] for r in records[max(0, i - window):i + 1]))
                                           for i in range(len(records))]))
        moved.append((policy, index, [(r["round"], len(measure.moved_units(r))) for r in records]))
        contributors.append((policy, index, [(r["round"], len({c["worker"] for c in r["contributors"]})) for r in records]))
    names = charts.legend(colours)
    if losses:
        card("Loss over time", charts.lines(f"loss, {name}", losses, "loss", "seconds"))
    card("Time of a round", charts.lines(
        f"round times, {name}",
        [(policy, i, [(r["round"], 1e3 * s) for r, s in typical[policy].timed_rounds()]) for i, policy in colours], "ms", "round"))
    card("Contributors of a round", charts.lines(f"contributors, {name}", contributors, "workers", "round"))
    if any(y for _, _, data in moved for _, y in data):
        card("Units moved in a round", charts.lines(f"moved units, {name}", moved, "units", "round"))
    for _, policy in colours:
        run = typical[policy]
        card(f"{policy}: three rounds", gantt_of(run, f"{name}, {policy}: three rounds"))
        shares = run.attribution()
        card(f"{policy}: where each worker's time went", charts.stacked(
            f"{name}, {policy}: compute, exchange, waiting", [f"worker {w}" for w in shares], ("compute", "exchange", "waiting"),
            {f"worker {w}": share for w, share in shares.items()}, "s"))
    what = f"<code>{escape(' '.join(specs))}</code>" if specs else "no slow-down"
    key = ('<div class="legend"><span><i style="background:#2f7ed8"></i>computing (each unit)</span><span><i style="background:#d6336c"></i>a unit moved here</span>'
           '<span><i style="background:#e08214"></i>exchange</span><span><i style="background:#c3c9d1"></i>waiting</span></div>')
    return f"<h2>{escape(name)}</h2><p class='about'>{what}</p>{html_table(rows)}{names}{key}<div class='cards'>{''.join(cards)}</div>"


def write_picture(path, chart, series):
    """A chart of the page as a picture of its own, for light and dark pages."""
    width, height = (int(float(text)) for text in chart.split('viewBox="0 0 ')[1].split('"')[0].split())
    key, x, y = "", charts.LEFT, height + 4
    for index, name in enumerate(series):
        step = 40 + 7 * len(name)
        if x + step > width and x > charts.LEFT:
            x, y = charts.LEFT, y + 20
        key += f'<rect x="{x}" y="{y}" width="11" height="11" class="s{index}"/><text x="{x + 16}" y="{y + 10}">{escape(name)}</text>'
        x += step
    style = "text{fill:#808890;font:11px system-ui,sans-serif}.grid{stroke:#80889055}.reference{stroke:#808890;stroke-dasharray:4 4}" + "".join(
        f".s{i}{{fill:{c}}}" for i, c in enumerate(COLOURS))
    body = chart.split(">", 1)[1].rsplit("</svg>", 1)[0]
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y + 20}" width="{width}"><style>{style}</style>{body}{key}</svg>\n', encoding="utf-8")


def overview_charts(series, rows, target):
    """The charts over all patterns: {file name: (title, SVG)}. series: all policies, each with the colour of its place."""
    names = list(rows)

    def chart(title, column, unit, reference=None):
        return charts.bars(title, names, series, {p: {q: rows[p][q][column] for q in rows[p]} for p in names}, unit, reference=reference)

    made = {"overview": ("Time for a sample over the ideal", chart("time for a sample over the ideal", "of_ideal", "x ideal", 1.0)),
            "samples": ("Samples that count, per second", chart("samples per second", "samples_per_s", "samples/s"))}
    if any(row["seconds_to_target"] is not None for group in rows.values() for row in group.values()):
        made["to-target"] = (f"Seconds to {target:.0%} test accuracy", chart("seconds to the target accuracy", "seconds_to_target", "s"))
    return made


def write_pictures(folder, series, rows, target):
    """Writes each chart over all patterns as NAME.svg; returns the names of the files."""
    made = overview_charts(series, rows, target)
    for name, (_, chart) in made.items():
        write_picture(folder / f"{name}.svg", chart, series)
    return [f"{name}.svg" for name in made]


def write_html(path, about, patterns, series, runs, rows, target):
    """patterns: {name: [SPEC]}; series: all policies; runs, rows: {name: {policy: ...}}."""
    every = [run for policies in runs.values() for group in policies.values() for run in group]
    badges = ""
    if any(run.summary.get("simulated") for run in every):
        badges += ' <span class="badge">simulated</span>'
    if any(run.emulated() for run in every):
        badges += ' <span class="badge">emulated</span>'
    cards = [f'<div class="card"><h3>{title}</h3>{chart}</div>' for title, chart in overview_charts(series, rows, target).values()]
    sections = "".join(pattern_section(name, patterns[name], series, runs[name], rows[name]) for name in rows)
    path.write_text(
        f"<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' content='width=device-width,initial-scale=1'>"
        f"<title>Lockstep: policies compared</title><style>{STYLE}</style><h1>Policies compared{badges}</h1>"
        f"<p class='about'>{escape(about)}</p>"
        f"<p class='about'>Ideal: all samples of a round, divided by the sum of all workers' speeds in it, without any waiting. A worker's speed in a round "
        f"is its samples divided by its time of computation. In a round in which it computed nothing that counts, it has the speed of its "
        f"nearest round. In a run in which it never did, it has its median speed in the other runs. The column <i>of ideal</i> compares times for each sample that counts, so "
        f"a policy that leaves samples out does not look quicker for it. Rows are medians of the runs; plots are of the run in the middle.</p>"
        f"{charts.legend(enumerate(series))}<div class='cards'>{''.join(cards)}</div>{sections}</html>",
        encoding="utf-8")
