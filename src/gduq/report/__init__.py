"""From predictions to a page a person can read, and to JSON for machines.

`build` makes one self-contained HTML page from `Subject` objects, `write` puts it (or JSON) into a
file, `subject_from_run` and `subjects_from_runs` read run folders.
"""

from gduq.report.page import build, write
from gduq.report.subject import Subject, subject_from_run, subjects_from_runs

__all__ = ["Subject", "build", "subject_from_run", "subjects_from_runs", "write"]
