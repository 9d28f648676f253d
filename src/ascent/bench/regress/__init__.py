"""`ascent regress`: what an engine makes of fixed prompts, kept before an upgrade and compared after it.

prompts     what is asked: the project's own texts, or a file
plan        the prompts in a model's tokens, and how they are asked
subject     what an engine must be able to do to be asked
engines     those that can: vLLM, transformers; service: a standing one
measure     one run: greedy tokens, log-probabilities, sampling, speed, memory
runs        several runs, each in a process of its own (child)
record      what is kept of them: a file
tolerance   how far the recorded runs differ among themselves, and so what a change is
sampled     do two engines sample alike? figures: are they as fast and as large?
compare     a record and another one -> a verdict for each prompt and figure
report      the comparison as text and JSON; command: what the command line calls
"""
