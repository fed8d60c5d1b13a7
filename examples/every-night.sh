#!/bin/sh
# One night of a run in service: append rows, score them, train from the run, and put the better run in its place.
#   every-night.sh FILE.h5 ROWS.csv DAY        DAY is the first day of the new rows, such as 2024-02-01
# runs/current is a link to the run in service.  Where a step fails, the script ends there and the link stays as it is.
set -eu
file=$1 rows=$2 day=$3 runs=${RUNS:-runs}
current=$runs/current new=$runs/$day
trap 'code=$?; [ $code = 0 ] || echo "every-night: stopped, $(readlink "$current") stays in service" >&2' EXIT

socialx append "$file" "$rows"
socialx evaluate "$current" --data "$file" --split all --start "$day" --drift  # fails if the file did not grow
socialx train --init-from "$current" --data "$file" --run-dir "$new" --overwrite --max-epochs 1

# Both runs forecast the same test split; the new one must not have a larger error.
scores=$(socialx evaluate "$current" --data "$file" --json)
limit=$(printf %s "$scores" | python3 -c 'import json, sys
(run,) = json.load(sys.stdin)["scores"].values()
print(next(iter(run.values()))["all"]["mae"])')
code=0
socialx evaluate "$new" --data "$file" --fail-above "all=$limit" || code=$?
case $code in
0)
    ln -sfn "$day" "$runs/next"
    mv -T "$runs/next" "$current"  # in one step: who reads it sees the old run or the new one
    ;;
3) ;;  # it was scored, and its error is larger
*) exit "$code" ;;
esac
echo "every-night: $(readlink "$current") is in service"
