"""The experiments of `sluice lab`: what sharing a GPU gives, what it costs, and why distributed training wants whole GPUs.

    cli.py          sluice lab list, run, report, compare
    experiment.py   what an experiment is: cells, predictions, claims
    consolidation.py, tail.py, straggler.py, jitter.py   the experiments
    processes.py    tenants as processes, with a broker, on software GPUs or hardware
    results.py      the files of a run, from which it goes on after an interruption
    intervals.py    figures with their 95 % intervals
    report.py, plots.py                the HTML page
"""
