"""Runs gathered into the entries of a table: a row's seeds, and how they trained."""

import dataclasses
import statistics
from collections.abc import Callable, Sequence

from attn_cnn_jax.results import intervals
from attn_cnn_jax.results.bench_records import BenchRecord
from attn_cnn_jax.results.runs import Score, ScoredRun, group_by_seed
from attn_cnn_jax.results.table_text import MISSING, Cell


@dataclasses.dataclass(frozen=True)
class Entry:
    """Runs whose mean is taken: alike but for the seed and all complete, or one run."""

    runs: tuple[ScoredRun, ...]

    @property
    def finished(self) -> bool:
        """True where all were trained and evaluated to the end."""
        return all(run.finished for run in self.runs)

    @property
    def status(self) -> str:
        """Return in two words how these runs stand beside the published ones."""
        if not self.finished:
            return "unfinished"
        if self.runs[0].row is None:
            return "complete"
        return "other protocol" if self.runs[0].differences else "as published"

    @property
    def departures(self) -> list[str]:
        """Sentences that say what was not done as published."""
        run = self.runs[0]
        notes = []
        if not self.finished:
            text = f"Unfinished: {run.epochs:.6g} of {run.num_epochs} epochs trained"
            if run.final:
                text += f"; the final accuracy is that of step {run.final.step}"
            notes.append(f"{text}.")
        if run.differences:
            notes.append(
                f"Not as published: {'; '.join(run.differences)}. Compare with care."
            )
        return notes

    @property
    def footnotes(self) -> list[str]:
        """The departures, and what else a reader has to know before comparing."""
        run = self.runs[0]
        notes = self.departures
        if run.chosen_on == "validation":
            notes.append(
                "Best: the test accuracy at the step that was best on the validation "
                "images, held out of the training images."
            )
        counts = sorted({evaluations(run) for run in self.runs})
        if counts[-1] and any(evaluations(r) < r.epochs - 1 for r in self.runs):
            number = " or ".join(str(count) for count in counts)
            notes.append(f"Evaluations fewer than one an epoch: best of {number}.")
        return notes

    @property
    def bench(self) -> BenchRecord | None:
        """The newest measurement of these runs."""
        benches = [run.bench for run in self.runs if run.bench]
        return max(benches, key=lambda bench: bench.date, default=None)

    def accuracy(self, of: Callable[[ScoredRun], Score | None]) -> Cell:
        """Return mean, sample standard deviation and 95 % interval of a score.

        The interval is the one that `interval` names.
        """
        scores = [of(run) for run in self.runs]
        values = [score.accuracy for score in scores if score]
        if not values or len(values) < len(scores):
            return Cell()
        if len(values) > 1:
            interval = intervals.student(values)
            return Cell(statistics.fmean(values), statistics.stdev(values), interval)
        images = self.runs[0].test_images
        interval = intervals.wilson(values[0], images) if images else None
        return Cell(values[0], interval=interval)

    @property
    def interval(self) -> str | None:
        """What the 95 % intervals are over, or None where there are none."""
        run = self.runs[0]
        if len(self.runs) > 1:
            return f"{len(self.runs)} seeds (Student's t)"
        known = run.test_images and run.final
        return f"{run.test_images:,} test images (Wilson)" if known else None

    @property
    def digests(self) -> str | None:
        """The digests of the logs that the scores are read from, by rising seed."""
        digests = [run.digest for run in self.runs]
        if not any(digests):
            return None
        return ", ".join(digest or MISSING for digest in digests)


def evaluations(run: ScoredRun) -> int:
    """Return how often a run was scored on the test set."""
    test = run.series.get("test")
    return 0 if test is None else len(test.steps)


def gather(runs: Sequence[ScoredRun]) -> list[Entry]:
    """Return the entries of runs: complete ones by config over seeds, others singly.

    First stand those that are as published, then by how much they differ, at the end
    the unfinished ones.
    """
    entries = []
    for group in group_by_seed(runs):
        complete = tuple(run for run in group if run.finished)
        entries += [Entry(complete)] if complete else []
        entries += [Entry((run,)) for run in group if not run.finished]
    return sorted(
        entries,
        key=lambda entry: (
            not entry.finished,
            len(entry.runs[0].differences),
            -len(entry.runs),
            -entry.runs[0].epochs,
        ),
    )
