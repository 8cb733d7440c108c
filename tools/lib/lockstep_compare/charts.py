"""Charts as SVG text, for one HTML page without scripts. Colours are CSS classes of the page (s0, s1, ...)."""

import math
from html import escape

WIDTH, HEIGHT = 620, 260
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 26, 40


def nice_ticks(top, count=5):
    """A scale from 0 to at least `top`."""
    if top <= 0:
        return [0, 1]
    raw = top / count
    step = 10 ** math.floor(math.log10(raw))
    step *= next(factor for factor in (1, 2, 5, 10) if factor * step >= raw)
    return [i * step for i in range(int(math.ceil(top / step - 1e-9)) + 1)]


def number(value):
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


class Canvas:
    def __init__(self, title, width=WIDTH, height=HEIGHT):
        self.width, self.height = width, height
        self.parts = [f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}"><title>{escape(title)}</title>']

    def text(self, x, y, text, anchor="middle", kind="label"):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{escape(str(text))}</text>')

    def line(self, x1, y1, x2, y2, kind="grid"):
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>')

    def rect(self, x, y, w, h, kind, tip=""):
        title = f"<title>{escape(tip)}</title>" if tip else ""
        self.parts.append(f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(w, 0.3):.2f}" height="{max(h, 0):.2f}" class="{kind}">{title}</rect>')

    def polyline(self, points, kind, tip=""):
        coordinates = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{coordinates}" class="line {kind}"><title>{escape(tip)}</title></polyline>')

    def end(self):
        return "".join(self.parts) + "</svg>"


def legend(colours):
    """A legend. colours: [(index of its colour, name)]."""
    items = "".join(f'<span><i class="k{index}"></i>{escape(name)}</span>' for index, name in colours)
    return f'<div class="legend">{items}</div>'


def axes(canvas, ticks, y_of, unit, right=RIGHT):
    for tick in ticks:
        canvas.line(LEFT, y_of(tick), canvas.width - right, y_of(tick))
        canvas.text(LEFT - 6, y_of(tick) + 4, number(tick), "end")
    canvas.text(12, 12, unit, "start", "unit")


def bars(title, groups, series, values, unit, reference=None):
    """Bars. values[group][name] or None; one bar for each name in each group. `reference`: a line at that height."""
    width = max(WIDTH, LEFT + RIGHT + len(groups) * (len(series) * 14 + 26))
    canvas = Canvas(title, width)
    top = max([v for group in groups for v in values[group].values() if v is not None] + [reference or 0, 1e-9])
    ticks = nice_ticks(top)
    bottom = canvas.height - BOTTOM

    def y_of(value):
        return bottom - (bottom - TOP) * value / ticks[-1]

    axes(canvas, ticks, y_of, unit)
    slot = (width - LEFT - RIGHT) / len(groups)
    thick = min(26, (slot - 14) / len(series))
    for g, group in enumerate(groups):
        x = LEFT + slot * g + (slot - thick * len(series)) / 2
        for s, name in enumerate(series):
            value = values[group].get(name)
            if value is None:
                canvas.text(x + thick * (s + 0.5), bottom - 4, "–")
                continue
            canvas.rect(x + thick * s + 1, y_of(value), thick - 2, bottom - y_of(value), f"s{s}", f"{group}, {name}: {number(value)} {unit}")
        canvas.text(LEFT + slot * (g + 0.5), bottom + 18, group)
    if reference is not None:
        canvas.line(LEFT, y_of(reference), width - RIGHT, y_of(reference), "reference")
    return canvas.end()


def lines(title, series, unit, x_unit, lowest=0.0):
    """Lines. series: [(name, index of its colour, [(x, y), ...])]."""
    canvas = Canvas(title)
    points = [p for _, _, data in series for p in data]
    if not points:
        return ""
    x_ticks = nice_ticks(max(x for x, _ in points))
    ticks = nice_ticks(max(y for _, y in points) - lowest)
    bottom, right = canvas.height - BOTTOM, canvas.width - RIGHT

    def y_of(value):
        return bottom - (bottom - TOP) * value / ticks[-1]

    def x_of(value):
        return LEFT + (right - LEFT) * value / x_ticks[-1]

    for tick in ticks:
        canvas.line(LEFT, y_of(tick), right, y_of(tick))
        canvas.text(LEFT - 6, y_of(tick) + 4, number(tick + lowest), "end")
    canvas.text(12, 12, unit, "start", "unit")
    for tick in x_ticks:
        canvas.text(x_of(tick), bottom + 16, number(tick))
    canvas.text((LEFT + right) / 2, bottom + 34, x_unit, kind="unit")
    for name, index, data in series:
        thin = data[:: max(1, len(data) // 400)]
        canvas.polyline([(x_of(x), y_of(y - lowest)) for x, y in thin], f"l{index}", name)
    return canvas.end()


def stacked(title, rows, parts, values, unit):
    """Horizontal bars of shares: values[row][part]."""
    height = TOP + 24 + len(rows) * 22
    canvas = Canvas(title, height=height)
    top = max(sum(values[row].values()) for row in rows) or 1
    for index, row in enumerate(rows):
        y = TOP + index * 22
        canvas.text(LEFT + 14, y + 13, row, "end")
        x = LEFT + 20
        for p, part in enumerate(parts):
            w = (canvas.width - RIGHT - LEFT - 20) * values[row][part] / top
            canvas.rect(x, y, w, 16, f"p{p}", f"{row}, {part}: {number(values[row][part])} {unit}")
            x += w
    return canvas.end()


def gantt(title, workers, spans, marks, begin, end):
    """A timeline. spans: [(worker, from, to, kind, tip)]; marks: [(time, label)]."""
    row_height = 18
    canvas = Canvas(title, height=TOP + 30 + workers * row_height)
    right = canvas.width - RIGHT
    bottom = TOP + workers * row_height

    def x_of(t):
        return LEFT + (right - LEFT) * min(max((t - begin) / (end - begin), 0), 1)

    for worker in range(workers):
        canvas.text(LEFT - 6, TOP + worker * row_height + 12, f"worker {worker}", "end")
    for worker, start, stop, kind, tip in spans:
        canvas.rect(x_of(start), TOP + worker * row_height + 2, x_of(stop) - x_of(start), row_height - 4, kind, tip)
    for time, label in marks:
        canvas.line(x_of(time), TOP - 6, x_of(time), bottom, "mark")
        canvas.text(x_of(time), bottom + 14, label)
    return canvas.end()
