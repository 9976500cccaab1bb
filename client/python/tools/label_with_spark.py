#!/usr/bin/env python3
"""An example: labels scans on a Spark cluster, with mapInPandas. Needs pyspark, pandas and Java.

    spark-submit label_with_spark.py ADDRESS MODEL SAVE INPUT...

INPUT, SAVE: files, folders and URLs that every executor reaches, as `python -m voxserve.batch` takes them. Each
partition has a client of its own. Spark repeats a failed partition; scans that have their result are not run again. A
scan that cannot be labelled is a row with its error. Writes the manifest to SAVE/manifest, as Parquet.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import pandas
from pyspark.sql import SparkSession

import voxserve
from voxserve.cli import scan_jobs
from voxserve.ray import ScanLabeller  # a function of batches, which does not need Ray

SCHEMA = "path string, save string, points long, classes string, error string"


def main(address: str, model: str, save: str, *inputs: str) -> None:
    spark = SparkSession.builder.appName("voxserve").getOrCreate()
    jobs = scan_jobs.plan(list(inputs), save, "", ".label")
    scans = spark.createDataFrame([(job.input, job.save) for job in jobs], "path string, save string")
    client = voxserve.Client(address)  # is pickled, with its token if it has one

    def label(batches: Iterable[pandas.DataFrame]) -> Iterator[pandas.DataFrame]:
        labeller = ScanLabeller(model, client)
        for batch in batches:
            yield pandas.DataFrame(labeller({name: batch[name].to_numpy() for name in batch.columns}))

    parts = min(len(jobs), 2 * spark.sparkContext.defaultParallelism)
    done = scans.repartition(parts).mapInPandas(label, SCHEMA)
    done.write.mode("overwrite").parquet(f"{save}/manifest")
    spark.read.parquet(f"{save}/manifest").selectExpr("error = '' AS is_labelled").groupBy("is_labelled").count().show()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
