"""A pipeline schedule as data, and the one event engine that prices it."""

from torchlayout.schedule.action import Action
from torchlayout.schedule.orders import actions
from torchlayout.schedule.timeline import Event, Timeline, timeline

__all__ = ["Action", "Event", "Timeline", "actions", "timeline"]
