"""Models at work: the HTTP service of ``gduq serve``."""

from gduq.deploy.card import card
from gduq.deploy.http import make_app
from gduq.deploy.limits import Limits, Refused

__all__ = ["Limits", "Refused", "card", "make_app"]
