"""The command `basinax report`: a page about a stored run."""

from pathlib import Path

from basinax.atoms._record import Relaxed
from basinax.atoms._report.page import check_report, write_report
from basinax.atoms._runs.folder import RunFolder
from basinax.cli._console import out, reported
from basinax.cli._places import check_places
from basinax.cli._summary import print_written


def run(name: str, output: Path | None, *, may_replace: bool) -> None:
    with reported():
        kept = RunFolder(name)
        place = output or kept.page
        kept.check_begun()
        check_report(place)
        briefs, record = kept.results.briefs(), kept.read_record()
    may_replace = may_replace or (output is None and not place.is_symlink())
    check_places([(place, "output")], None, 0, kept.files, may_replace=may_replace)
    with reported():
        rows = (brief.as_row() for brief in briefs)
        curves = kept.results.curves()
        write_report(place, rows, Relaxed, curves=curves, settings=record, title=kept.name)
    print_written(out, [place])
