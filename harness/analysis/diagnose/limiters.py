"""The limiters, and how they are told apart. All reasoning is here; the other modules carry it out.

**Lost time.** lost = step − ideal step, in seconds a step, block by block. With a base the ideal is
the base's step (weak scaling) or the base's step × base devices / N (strong), so lost = step ·
(1 − E). Without a base it is the point's own *arithmetic*: forward + backward, less the part that
does not grow with the batch and less interference, where these were measured and are above zero.

**Parts.** A step is data + forward + backward + transfer + wait + update + what lies between the
marks (``docs/metrics.md``), each a mean over ranks. What a part takes beyond the same part of the
ideal is lost to it, so the parts add up to the lost time; what the marks do not explain is a part
of its own. The base's wait and transfer are zero where it is one rank.

1. *stragglers* = wait + unevenness. Exposed sync = transfer + wait, and wait is the time that ranks
   stand at the all-reduce for the last one. The same lateness is also in the means of the phases,
   because the late rank's longer phase is in them: unevenness is a phase's mean over ranks − that
   of the reference rank, the lower median by its own time (step − exposed sync). Both together are
   what the last rank takes longer than a typical one. The raw steps tell whether it is always the
   same rank, and which of its phases is long; rank means cancel jitter, so jitter is in wait alone.
2. *transfer* and *negotiation* share the phase transfer: all that holds up every rank alike. Time
   on the wire is bounded from above by (a) all-reduce + copies in Horovod's timeline, where it was
   written, else (b) the isolated all-reduce of the same bytes, the shortest of those measured that
   differ in the cycle time alone; what transfer takes beyond is coordination, *negotiation*:
   requests, cycles, pieces that were not fused, its thread waiting for a core. From below it is
   bounded by isolated all-reduce − two cycles, where the cycle is shortest: a call waits for the
   next round of Horovod's loop, and where a rank just missed that one, for one more. That much is
   *transfer*, the wire. Between the two bounds the records cannot tell: *sync*. With a timeline the
   bounds are one. DDP has no controller, so its transfer is all wire. Where exposed sync could not
   be marked, *sync* is the ablation's difference, undivided.
3. *data* and *update*: their phases beyond the ideal's. Without a base all of them.
4. *launch-bound*: the part of forward + backward that does not grow with the batch, by a line
   through this point and the one with the nearest other batch, same in all else: c(B) − B · slope
   (slope not below 0). Lost is what of it the ideal step has not: all without a base; with strong
   scaling the part 1 − base devices / N, because each rank does it whole; with weak scaling none,
   the base pays as much. On a GPU without a second batch: (1 − utilisation) · step − data − exposed
   sync, at least so long no kernel ran while nothing was waited for. On a CPU nothing is launched;
   there it is the overhead per step.
5. *interference*, where ablation was measured: (step with − without the all-reduce) − exposed sync.
6. *oversubscription* or *contention*: forward + backward beyond the ideal's, less 4 and 5. It has
   the first name where a node has more ranks (or cores given to them) than cores, else the second:
   shared caches, memory, clocks, or hooks; the records say no more. With strong scaling and nothing
   that tells the part of 4, both are one, *compute*: what does not shrink with the batch is in it.
7. *instrument*: the telemetry's cost beyond the base's. It runs in the window, so its time is in
   other parts, too, and does not add up with them. Instruments after the window cost it nothing.
8. *unmarked*: step − sum of the phases, beyond the base's. Marked steps are other steps than the
   window's, so it may be negative.

**Shared.** What the base's step has as well is no loss of scaling, but limits throughput: data,
update and launch-bound are named as *shared* where they take ``SHARED_SHARE`` of the step or more.

**Certainty.** Values are averaged over blocks, with Student's interval. A limiter whose interval
reaches zero is *not shown*. One block has no interval: then sizes are told, and that nothing was
tested; ablation and telemetry of one launch have two standard errors from its own blocks.
Findings are ordered by their time.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

#: What the base has too is named from this part of the step on.
SHARED_SHARE = 0.25


@dataclass(frozen=True)
class Limiter:
    """One limiter: its name, and what it is in one line."""

    name: str
    meaning: str
    words: str = ""  # in a sentence, where its name is none

    @property
    def title(self) -> str:
        """Return how a sentence names it."""
        return self.words or self.name


_ALL = (
    Limiter("data", "waiting for the next batch"),
    Limiter("launch-bound", "compute that does not grow with the batch"),
    Limiter("negotiation", "Horovod's coordination before and between all-reduces"),
    Limiter("transfer", "moving the gradient's bytes"),
    Limiter("sync", "the all-reduce; negotiation and transfer not told apart"),
    Limiter("stragglers", "waiting for the last rank"),
    Limiter("update", "the optimiser's step"),
    Limiter("interference", "what communication costs besides waiting for it"),
    Limiter("oversubscription", "compute slowed down by more ranks than cores"),
    Limiter("contention", "forward and backward slower than the base's"),
    Limiter(
        "compute",
        "forward and backward beyond their share; a fixed part and a slower pace not told apart",
        "compute that did not shrink with the batch",
    ),
    Limiter("instrument", "the telemetry that ran beside the window"),
    Limiter(
        "unmarked",
        "in no phase: between steps, or another pace in marked steps",
        "time in no phase",
    ),
)

LIMITERS = MappingProxyType({one.name: one for one in _ALL})
