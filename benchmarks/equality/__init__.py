"""The proof of equality: no drafter, neighbour, preemption or cache changes a token or a bit.

    python -m benchmarks.equality [--models NAME ...] [--minutes M] [--record]

Every stream is compared with a plain one: no drafter, nobody beside it, the same request. What is
varied are the tables of `axes.py`; whoever adds a drafter, a kernel, a weight format, a way of
sampling or a kind of company adds one line to one of them, and every value of every other table
meets it.
"""
