"""From predictions to a page a person can read, and to JSON for machines.

`build` makes one self-contained HTML page from `Subject` objects, `write` puts it (or JSON) into a
file, `subject_from_run` reads a run folder, and `subjects_from_runs` reads
several and makes one subject of runs that differ in the seed only.
"""

from gduq.report.page import build, write
from gduq.report.runs import subject_from_run, subjects_from_runs
from gduq.report.subject import Subject

__all__ = ["Subject", "build", "subject_from_run", "subjects_from_runs", "write"]
