"""What the page of results says before its tables: of all runs, and of those under results/."""

HEAD = """# Results

Written by `apportion report {root} --md {path}` from the run folders under `{root}/`; do not edit
it by hand.

Test accuracy in per cent, **of the last epoch**, on the official test split (two moons: fresh points;
digits: a random quarter). A cell is *ours (standard deviation, seeds) / the paper's / the difference*; a
dash is a run that is not there yet. The best epoch on the test set is printed further down, marked
oracle, because the field often reports it: it needs labels that nobody has.

Bags are disjoint and the same for every method of a seed; the proportions are counted from the labels,
which no learner sees.
"""
OURS = """
Bags are random. Seed 0 is for tuning and appears in no table; what was tuned, and how, is in
[log.md](log.md). The settings of the default groups started from experiments that had looked at
test accuracy of seed 0, so they are not free of that look; the seeds of the image tables and of
digits were not part of it, while LLP-GAN on two moons was looked at on its own seeds 1 to 5 as
well. They are ours, not the paper's: no dropout of 0.5, a new student with mixup, cross-entropy, a
flat rate ([paper.md](paper.md), P1, P5, P10, P11). The `-paper` groups follow the paper as far as
it says.
"""
