# Draws every picture of README and docs at the size at which a page shows it, 900 pixels wide, but for model.png, which
# make docs draws.  LA and BAY: METR-LA and PEMS-BAY with 74 sensors, converted.  Pages need chromium.  Some minutes.
set -eu
LA=${LA:-data/metr_la.h5} BAY=${BAY:-data/pems_bay_74.h5} to=docs/pictures work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

page() { # ADDRESS PICTURE HEIGHT: the first pixels of a page
    chromium --headless --no-sandbox --hide-scrollbars --virtual-time-budget=5000 --user-data-dir="$work/chromium" --window-size=900,"$3" \
        --screenshot="$to/$2" "$1" 2>"$work/log" || { cat "$work/log" && exit 1; }
}

socialx predict metr-la --at "2012-06-27 07:15" --sensors 717610,767573,769430 --plot $to/forecast.png
socialx inspect "$LA" --plot $to/metr_la.png
socialx inspect "$BAY" --plot $to/pems_bay_74.png
socialx explain metr-la --data "$LA" --plot $to/metr_la_errors.png

socialx convert auto examples/data/city.csv.gz --meta-csv examples/data/city_sensors.csv \
    --name city --units mph --timezone America/Los_Angeles --output-h5 "$work/city.h5"
mkdir "$work/runs"
socialx train --data "$work/city.h5" --preset mlp-small --max-epochs 4 --run-dir "$work/runs/city"
(cd "$work" && socialx predict runs/city --at "2017-05-19 16:30" --interval 0.9 --plot tutorial.png)
mv "$work/tutorial.png" $to
(cd "$work" && socialx report runs/city -o report.html)
page "file://$work/report.html" report.png 1000

socialx profile -c examples/slow_on_purpose.yaml --data "$LA" --steps 8 --html "$work/profile.html"
page "file://$work/profile.html" profile.png 1200

socialx serve metr-la --interval 0.9 --port 8899 & server=$!
until curl -fs http://127.0.0.1:8899/health >/dev/null; do sleep 1; done
page http://127.0.0.1:8899/ serve.png 900
kill $server

python benchmarks/accuracy.py
python -c "
import json; from benchmarks import zero_shot
zero_shot.draw(json.loads((zero_shot.RESULTS / 'zero_shot.json').read_text()))"
