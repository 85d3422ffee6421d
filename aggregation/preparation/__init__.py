"""Federated preparation: what a schema must know of all clients' rows, agreed by sums before training.

survey = Survey(Draft((Number("age"), Category("city")), label=Category("ill")))
prepared = prepare(survey, clients)          # coterie.simulation; of devices: client_sdk.control.preparing.prepared
"""

from coterie.aggregation.preparation.draft import Category, Draft, Number
from coterie.aggregation.preparation.prepared import FoundCategory, FoundNumber, Prepared
from coterie.aggregation.preparation.survey import Survey

__all__ = ["Category", "Draft", "FoundCategory", "FoundNumber", "Number", "Prepared", "Survey"]
