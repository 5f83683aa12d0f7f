"""Models of growing size: the paper's families of MLP MoEs, and the multipliers tuned for them.

It imports planning, nn, data and replicas.
"""
