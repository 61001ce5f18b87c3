"""``hvdscale allreduce``: collectives with nothing else running, by every library that is here.

Nothing in this file, so that a record can be read where there is no torch.
"""
