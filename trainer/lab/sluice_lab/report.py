"""The results of a run as a table for the terminal, as JSON, and as one HTML page without anything from elsewhere."""
import html
import json
import math

from . import plots
from .experiment import LAG_MAX, Verdict, lag_of, verdict_of
from .intervals import Interval

STYLE = """
:root { --page: #fff; --text: #1c2430; --soft: #5b6675; --line: #d8dde4; --good: #14713a; --bad: #b3261e; --open: #8a5a00;
  --c0: #0b62a4; --c1: #c4460f; --c2: #2e7d32; --c3: #7a2e8e; --c4: #a66a00; --c5: #00797a; --c6: #a0195b; --c7: #515a66; }
@media (prefers-color-scheme: dark) { :root { --page: #14181e; --text: #e4e8ee; --soft: #9aa5b4; --line: #333b47; --good: #6fd08c;
  --bad: #ff8a80; --open: #f2c14e; --c0: #6cb6f5; --c1: #ff9466; --c2: #7ccf80; --c3: #d49be6; --c4: #f0b450; --c5: #5fd0d0;
  --c6: #ff8abf; --c7: #aab4c0; } }
body { background: var(--page); color: var(--text); font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; border-top: 1px solid var(--line); padding-top: 1.2rem; margin-top: 2rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; display: block; overflow-x: auto; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .7rem; text-align: right; } th { text-align: right; color: var(--soft);
  font-weight: 600; vertical-align: bottom; } th:first-child, td:first-child { text-align: left; } td { white-space: nowrap; }
.supported { color: var(--good); } .refuted { color: var(--bad); } .inconclusive { color: var(--open); } .verdict { font-weight: 700; }
.soft { color: var(--soft); } .summary { display: grid; grid-template-columns: repeat(auto-fill, minmax(17rem, 1fr)); gap: 1rem; }
.summary article { border: 1px solid var(--line); border-radius: 6px; padding: .7rem; } .summary h3 { margin: 0 0 .4rem; font-size: 1rem; }
.plot { width: 100%; height: auto; } .plot text { fill: var(--text); font-size: 12px; } .plot .label { font-size: 11px; }
.grid { stroke: var(--line); stroke-width: 1; } .series circle { fill: currentColor; } .series line, .series polyline {
  stroke: currentColor; stroke-width: 1.6; fill: none; } .series polyline { stroke-dasharray: 5 3; }
.s0 { color: var(--c0); } .s1 { color: var(--c1); } .s2 { color: var(--c2); } .s3 { color: var(--c3); } .s4 { color: var(--c4); }
.s5 { color: var(--c5); } .s6 { color: var(--c6); } .s7 { color: var(--c7); } .legend { list-style: none; padding: 0; display: flex;
  flex-wrap: wrap; gap: .2rem 1rem; } .legend li { font-size: 13px; } .dot, .line { display: inline-block; margin-right: .4rem;
  background: currentColor; } .dot { width: .6rem; height: .6rem; border-radius: 50%; } .line { width: 1.1rem; height: 2px;
  vertical-align: middle; } .summary .plot text { font-size: 20px; }
@media print { body { max-width: none; margin: 0; } h2 { break-before: page; } .summary article { break-inside: avoid; } }
"""


def text_of(value):
    """Returns a cell of a table as text."""
    if isinstance(value, Interval):
        return value.text()
    if isinstance(value, float):
        return "-" if math.isnan(value) else f"{value:.2f}"
    return str(value)


def table(rows):
    """Returns the rows as lines for a terminal, the columns beside each other."""
    if not rows:
        return "  (nothing measured)"
    heads = list(rows[0])
    cells = [[text_of(row[head]) for head in heads] for row in rows]
    widths = [max(len(line[i]) for line in [heads, *cells]) for i in range(len(heads))]
    lines = []
    for line in [heads, *cells]:
        lines.append("  " + "  ".join(text.ljust(width) if i == 0 else text.rjust(width)
                                       for i, (text, width) in enumerate(zip(line, widths))).rstrip())
    return "\n".join(lines)


class Outcome:
    """What an experiment came to."""

    def __init__(self, lab, experiment, measured):
        self.experiment = experiment
        self.rows = experiment.rows(lab, measured)
        self.claims = experiment.claims(lab, measured)
        self.verdict = verdict_of(self.claims)
        self.lesson = experiment.lesson(lab, measured)
        self.plots = experiment.plots(lab, measured)
        self.lag, self.noise = lag_of(measured), experiment.noise(measured)
        self.lags = self.lag is not None and self.lag > LAG_MAX
        if self.lags:
            self.verdict = Verdict.INCONCLUSIVE

    def conditions(self):
        """Returns what the figures stand on, in a sentence."""
        text = "Lag is not measured here" if self.lag is None else f"Lag of the software GPUs {self.lag:.2%}"
        if self.lags:
            text += f" (above {LAG_MAX:.0%}: this host was too slow or too busy, and the verdict is open)"
        if self.noise is not None:
            text += f"; noise floor {self.noise:.1%}, by the first cell measured twice"
        return text + "."

    def text(self):
        """Returns what the terminal shows."""
        lines = [f"{self.experiment.title} ({self.experiment.name})", table(self.rows)]
        lines += [f"  {claim.verdict().value:12} {claim.text}: {claim.figure.text()}" for claim in self.claims]
        return "\n".join([*lines, f"  {self.conditions()}", f"  {self.verdict.value.upper()}: {self.lesson}"])

    def json(self):
        def plain(value):
            if isinstance(value, Interval):
                return {key: None if math.isnan(number) else number for key, number in vars(value).items()}
            return None if isinstance(value, float) and math.isnan(value) else value
        return {"experiment": self.experiment.name, "verdict": self.verdict.value, "lesson": self.lesson, "lag": self.lag,
                "noise": self.noise, "rows": [{head: plain(value) for head, value in row.items()} for row in self.rows],
                "claims": [{"text": claim.text, "verdict": claim.verdict().value, "figure": plain(claim.figure),
                            "least": None if math.isinf(claim.least) else claim.least,
                            "most": None if math.isinf(claim.most) else claim.most} for claim in self.claims]}


def json_of(settings, outcomes):
    return json.dumps({"settings": settings, "experiments": [outcome.json() for outcome in outcomes]}, indent=1) + "\n"


def page(settings, outcomes):
    """Returns the HTML page."""
    out = ["<!doctype html>", '<html lang="en"><head><meta charset="utf-8"><title>Sluice: shared against exclusive</title>',
           '<meta name="viewport" content="width=device-width, initial-scale=1">', f"<style>{STYLE}</style></head><body>",
           "<h1>Shared against exclusive</h1>", f'<p class="soft">{html.escape(conditions(settings))}</p>', '<div class="summary">']
    for outcome in outcomes:
        out.append(f'<article><h3><a href="#{outcome.experiment.name}">{html.escape(outcome.experiment.title)}</a></h3>'
                   f"{plots.svg(outcome.plots[0])}<p>{verdict_html(outcome.verdict)} {html.escape(outcome.lesson)}</p></article>")
    out.append("</div>")
    for outcome in outcomes:
        out.append(section(outcome))
    return "\n".join([*out, "</body></html>", ""])


def conditions(settings):
    gpus = "on this machine's GPUs" if settings.get("gpu") else "on software GPUs, in modelled time"
    return (f"Measured {gpus} on {settings['host']} ({settings['processor']}, {settings['cores']} cores), {settings['started']}; "
            f"{stretched(settings)}; {settings['repeats']} repeats. Intervals are 95 % (bootstrap).")


def stretched(settings):
    if settings["dilation"]:
        return f"time stretched {settings['dilation']} times"
    return f"a wake-up of this host takes {settings['wake_us']} us, and time is stretched by that"


def verdict_html(verdict):
    return f'<span class="verdict {verdict.value}">{verdict.value}.</span>'


def section(outcome):
    experiment = outcome.experiment
    out = [f'<section id="{experiment.name}"><h2>{html.escape(experiment.title)}</h2>',
           f"<p><b>Question.</b> {html.escape(experiment.question)}</p>", f"<p><b>Set-up.</b> {html.escape(experiment.setup)}</p>",
           f"<p><b>Refuted if</b> {html.escape(experiment.refuted_if)}.</p>",
           f"<p>{verdict_html(outcome.verdict)} {html.escape(outcome.lesson)}</p>"]
    for plot in outcome.plots:
        out.append(f"<figure><figcaption>{html.escape(plot.title)}</figcaption>{plots.svg(plot)}{plots.legend(plot)}</figure>")
    heads = list(outcome.rows[0]) if outcome.rows else []
    out.append("<table><thead><tr>" + "".join(f"<th>{html.escape(head)}</th>" for head in heads) + "</tr></thead><tbody>")
    for row in outcome.rows:
        out.append("<tr>" + "".join(f"<td>{html.escape(text_of(row[head]))}</td>" for head in heads) + "</tr>")
    out.append("</tbody></table><ul>")
    for claim in outcome.claims:
        out.append(f"<li>{verdict_html(claim.verdict())} {html.escape(claim.text)}: {html.escape(claim.figure.text())}</li>")
    out.append(f'</ul><p class="soft">{html.escape(outcome.conditions())}</p></section>')
    return "\n".join(out)
