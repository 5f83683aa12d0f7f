"""Training by a plan, on one device or many: layouts, and whether a step is the same under each of them.

It imports planning, apply, nn, data, hf, measure, theory, replicas, ladders, store, coordcheck and sweep.
"""
