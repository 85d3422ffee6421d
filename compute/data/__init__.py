"""Feeding graphs: sources of rows, the chain that orders and maps them, and deterministic, resumable batches.

The public names are loaded on first use, so that a worker process imports no more than it runs.
"""

from typing import TYPE_CHECKING

from coterie.compute.lazy import loader

if TYPE_CHECKING:
    from coterie.compute.data.batched import Batched as Batched
    from coterie.compute.data.batches import Batches as Batches
    from coterie.compute.data.dataset import Dataset as Dataset
    from coterie.compute.data.profiling import DataProfile as DataProfile
    from coterie.compute.data.random_stream import RandomStream as RandomStream
    from coterie.compute.data.record.source import RecordSource as RecordSource
    from coterie.compute.data.record.writer import RecordWriter as RecordWriter
    from coterie.compute.data.record.writer import write_records as write_records
    from coterie.compute.data.samplers import BalancedSampler as BalancedSampler
    from coterie.compute.data.samplers import RandomSampler as RandomSampler
    from coterie.compute.data.samplers import ReplacementSampler as ReplacementSampler
    from coterie.compute.data.samplers import Sampler as Sampler
    from coterie.compute.data.samplers import SubsetSampler as SubsetSampler
    from coterie.compute.data.samplers import WeightedSampler as WeightedSampler
    from coterie.compute.data.source import Column as Column
    from coterie.compute.data.source import Source as Source
    from coterie.compute.data.sources.arrays import ArraySource as ArraySource
    from coterie.compute.data.sources.csv.source import CsvSource as CsvSource
    from coterie.compute.data.sources.images import ImageFolder as ImageFolder
    from coterie.compute.data.sources.jsonl import JsonlSource as JsonlSource
    from coterie.compute.data.sources.npz import NpzSource as NpzSource
    from coterie.compute.data.sources.opening import open_source as open_source
    from coterie.compute.data.sources.tables import ArrowSource as ArrowSource
    from coterie.compute.data.sources.tables import HuggingFaceSource as HuggingFaceSource
    from coterie.compute.data.sources.text import TextSource as TextSource
    from coterie.compute.data.stream import BatchStream as BatchStream
    from coterie.compute.data.transform import Context as Context
    from coterie.compute.data.transform import Transform as Transform

_HOMES = {
    "ArraySource": "sources.arrays",
    "ArrowSource": "sources.tables",
    "BalancedSampler": "samplers",
    "BatchStream": "stream",
    "Batched": "batched",
    "Batches": "batches",
    "Column": "source",
    "Context": "transform",
    "CsvSource": "sources.csv.source",
    "DataProfile": "profiling",
    "Dataset": "dataset",
    "HuggingFaceSource": "sources.tables",
    "ImageFolder": "sources.images",
    "JsonlSource": "sources.jsonl",
    "NpzSource": "sources.npz",
    "RandomSampler": "samplers",
    "RandomStream": "random_stream",
    "RecordSource": "record.source",
    "RecordWriter": "record.writer",
    "ReplacementSampler": "samplers",
    "Sampler": "samplers",
    "Source": "source",
    "SubsetSampler": "samplers",
    "TextSource": "sources.text",
    "Transform": "transform",
    "WeightedSampler": "samplers",
    "open_source": "sources.opening",
    "write_records": "record.writer",
}

__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]  the table above is the list

__getattr__ = loader(__name__, _HOMES)
