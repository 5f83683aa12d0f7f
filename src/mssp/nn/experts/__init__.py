"""How experts are computed: four ways of which ``choice`` takes the fastest for the shape; ``loop`` is the reference.

It imports torch and nothing of ours but the private modules at the root and ``nn.activations``.
"""
