#!/bin/sh
# From the raw files of a traffic network to a scored model and a forecast: what make demo runs.
set -eu
run() { printf '\n$ %s\n' "$*"; "$@"; }

mkdir -p demo
run socialx convert metr-la --data-csv examples/data/METR-LA-excerpt.csv \
    --meta-csv examples/data/sensor_locations.csv --output-h5 demo/metr_la.h5 --validate --overwrite
run socialx inspect demo/metr_la.h5
run socialx train -c examples/demo.yaml --data demo/metr_la.h5 --run-dir demo/run --overwrite
run socialx profile -c examples/demo.yaml --data demo/metr_la.h5 --steps 30
run socialx evaluate demo/run --baselines
run socialx predict demo/run --at "2012-05-23 16:00" --plot demo/forecast.png
