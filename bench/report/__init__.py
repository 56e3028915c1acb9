# SPDX-License-Identifier: Apache-2.0
"""make report: what is measured on the rig, judged, drawn.

facts      what is measured on: commit, QEMU, kernels, host
samples    samples and the head of a data set, as lines of text
recorder   the file of them, which a cut run goes on with
turns      in which order the sides of a comparison take their turns
stats      medians, ratios, intervals, percentiles
goals      goals, and the verdicts on them
figure     what a group says of its pictures
summary    all results in short: what tables and page are made of
plots      the pictures
page       index.html
tables     tables in documents, between marks
run        the command line

Dependencies point up in this list. What measures is beside it: a module bench/figures_GROUP.py
has run(recorder), GOALS and FIGURES, and may have HEATMAPS.
"""
