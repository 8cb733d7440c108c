"""Real jobs under faults, for tools/chaos.

plan: a job and its schedule of faults, drawn from a seed. job: runs one. faults: makes the faults and ends them, with processes, disk and
links. rounds: watches rounds.jsonl grow. judge: checks a job from outside. leftovers: looks for
what a job has left behind. report: the
tables. options and main: the command line and the loop over jobs. torch_script.py is the script that PyTorch jobs run.
"""
