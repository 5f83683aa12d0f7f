"""What the theory predicts: exponents of every measured quantity, as data and from the rules themselves.

It imports planning and the vocabulary of quantities, and needs no torch.
"""
