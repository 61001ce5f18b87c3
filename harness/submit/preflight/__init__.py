"""``hvdscale preflight``: is every node and link of an allocation as good as the others?

Before a long campaign every node trains one workload alone, every pair of nodes exchanges messages
through what gradients would take, and versions, clocks and transports are compared. What is found
is named in plain sentences (``judge``), and kept with all samples (``record``).

``run`` is the side that starts things; ``rank`` is the program on every node, which watches over
the two that measure: ``speed`` and ``links``.
"""
