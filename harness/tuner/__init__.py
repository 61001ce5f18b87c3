"""``hvdscale tune``: Horovod's knobs searched for one workload, and the best of them validated.

Two sweeps come of it. The **search** (``RESULTS/<name>/``) measures the default, the named presets
and what an optimiser proposes, each in one launch. The best of many noisy measurements is too good
to be true (the winner's curse), so none of them is a source of the gain: the **validation**
(``RESULTS/<name>-validation-<digits>/``, named after what it compares) measures winner, default and
Horovod's own autotuner anew, in interleaved blocks, and the gain is the paired ratio of these.

``space`` (what may be turned), ``propose`` (the optimiser), ``budget`` (how long), ``searching``
and ``validating`` (the launches, by the runner), ``verdict`` (what it came to), ``preset_text``,
``tell`` (words).
"""
