"""The subcommand that writes a report."""

from __future__ import annotations

from pathlib import Path

from harness.errors import ConfigError


def command_report(
    path: str, out: Path | None, pdf: bool, results: Path, *, base: str | None, mixed: bool
) -> int:
    """Write the report of a sweep; print the paths of what was written.

    The HTML file stays where only the PDF could not be made. Raises ConfigError where ``out`` is no
    place for it.
    """
    from harness.cli.listing import sweep_folder

    folder = sweep_folder(path, results)
    target = out if out is not None else folder / "report.html"
    if target.suffix.lower() == ".pdf":
        raise ConfigError(
            f"--out {target}: names the HTML file, e.g. report.html; with --pdf the PDF is written "
            "beside it"
        )
    if target.is_dir():
        raise ConfigError(f"--out {target}: is a folder; name a file in it, e.g. report.html")
    from harness.analysis.report import report_html, write_report
    from harness.analysis.report.pdf import find_browser, pdf_bytes
    from harness.analysis.results import load_results

    browser = find_browser() if pdf else None  # missing, it is said before any work
    page = report_html(load_results(folder, base=base, mixed=mixed)).encode()
    write_report(target, page)
    print(target)
    if browser is not None:
        write_report(target.with_suffix(".pdf"), pdf_bytes(page, browser))
        print(target.with_suffix(".pdf"))
    return 0
