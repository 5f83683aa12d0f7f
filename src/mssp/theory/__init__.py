"""What the theory predicts: the exponent of every measured quantity, from the paper's tables or from the rules.

It imports planning and the vocabulary of quantities, and needs no torch.
"""
