"""Plots as SVG text: axes with units, points with their intervals, a title and a description for readers that do not see it. Colours
are the page's, by class, so that they fit light and dark."""
import dataclasses
import html
import math

WIDTH, HEIGHT = 560, 320
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 46  # room for the axes' texts
TICKS = 5


@dataclasses.dataclass
class Series:
    """Points (x, Interval), as marks with intervals, or as a line where `line` is set."""
    label: str
    points: list
    line: bool = False
    labels: list = dataclasses.field(default_factory=list)  # of the points, beside them


@dataclasses.dataclass
class Plot:
    title: str
    x_label: str
    y_label: str
    series: list
    x_log: bool = False
    y_log: bool = False
    y_least: float = None
    y_most: float = None
    x_most: float = None


def ticks(low, high, log):
    """Returns the values at which an axis is marked."""
    if log:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        values = [factor * 10 ** power for power in range(first, last + 1) for factor in (1, 2, 5)]
        return [value for value in values if low * 0.999 <= value <= high * 1.001]
    power = 10 ** math.floor(math.log10((high - low) / TICKS))
    step = next(power * factor for factor in (1, 2, 5, 10) if (high - low) / (power * factor) <= TICKS)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


class Axis:
    """Maps values to pixels."""

    def __init__(self, values, log, pixels, least=None, most=None):
        values = [value for value in values if math.isfinite(value) and (value > 0 or not log)] or [1]
        low, high = min(values), max(values)
        if log:
            low, high = low / 1.2, high * 1.2
        else:
            low, high = min(low, 0), high * 1.08 if high > 0 else 1
        self.low = low if least is None else least
        self.high = high if most is None else most
        if self.high <= self.low:
            self.high = self.low + 1
        self.log, self.pixels = log, pixels

    def at(self, value):
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log(max(value, low)), math.log(low), math.log(high)
        part = (min(max(value, low), high) - low) / (high - low)
        return self.pixels[0] + part * (self.pixels[1] - self.pixels[0])

    def ticks(self):
        return ticks(self.low, self.high, self.log)


def finite(interval):
    return [value for value in (interval.value, interval.low, interval.high) if not math.isnan(value)]


def svg(plot):
    """Returns the plot as an SVG element."""
    points = [point for series in plot.series for point in series.points]
    x = Axis([at for at, _ in points], plot.x_log, (LEFT, WIDTH - RIGHT), most=plot.x_most)
    y = Axis([value for _, interval in points for value in finite(interval)], plot.y_log, (HEIGHT - BOTTOM, TOP), plot.y_least,
             plot.y_most)
    out = [f'<svg class="plot" role="img" viewBox="0 0 {WIDTH} {HEIGHT}" aria-label="{html.escape(plot.title)}">',
           f"<title>{html.escape(plot.title)}</title><desc>{html.escape(description(plot))}</desc>"]
    for value in y.ticks():
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y.at(value):.1f}" y2="{y.at(value):.1f}"/>'
                   f'<text x="{LEFT - 6}" y="{y.at(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    for value in x.ticks():
        out.append(f'<line class="grid" x1="{x.at(value):.1f}" x2="{x.at(value):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
                   f'<text x="{x.at(value):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{value:g}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{html.escape(plot.x_label)}</text>')
    out.append(f'<text transform="translate(14 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" text-anchor="middle">'
               f"{html.escape(plot.y_label)}</text>")
    for number, series in enumerate(plot.series):
        out.append(series_svg(series, number, x, y))
    return "\n".join([*out, "</svg>"])


def series_svg(series, number, x, y):
    out = [f'<g class="series s{number % 8}">']
    if series.line:
        corners = " ".join(f"{x.at(at):.1f},{y.at(interval.value):.1f}" for at, interval in series.points
                           if not math.isnan(interval.value))
        out.append(f'<polyline points="{corners}"/>')
    for index, (at, interval) in enumerate(series.points if not series.line else []):
        if math.isnan(interval.value):
            continue
        if not math.isnan(interval.low):
            out.append(f'<line class="error" x1="{x.at(at):.1f}" x2="{x.at(at):.1f}" y1="{y.at(interval.low):.1f}" '
                       f'y2="{y.at(interval.high):.1f}"/>')
        out.append(f'<circle r="3.5" cx="{x.at(at):.1f}" cy="{y.at(interval.value):.1f}"/>')
        if index < len(series.labels):
            out.append(f'<text class="label" x="{x.at(at) + 6:.1f}" y="{y.at(interval.value) - 6:.1f}">'
                       f"{html.escape(series.labels[index])}</text>")
    return "\n".join([*out, "</g>"])


def description(plot):
    """Returns all marks, and of each line five points, as a text."""
    parts = []
    for series in plot.series:
        points = series.points[::max(1, len(series.points) // 5)] if series.line else series.points
        values = ", ".join(f"{at:g}: {interval.text()}" for at, interval in points)
        parts.append(f"{series.label}: {values}")
    return f"{plot.y_label} over {plot.x_label}. " + "; ".join(parts)


def legend(plot):
    """Returns the names of the series with their colours, as HTML."""
    items = "".join(f'<li class="s{number % 8}"><span class="{"line" if series.line else "dot"}"></span>'
                    f"{html.escape(series.label)}</li>" for number, series in enumerate(plot.series))
    return f'<ul class="legend">{items}</ul>'
