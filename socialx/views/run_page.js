(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { sensors, scales, day, unit } = data;
  const [first, second] = document.querySelectorAll("svg.map");
  const captions = {
    error: byId("caption").textContent,
    received: "Attention weight that all sensors together give to each",
    day: "Reading",
  };
  const state = { mode: "error", time: day.start, chosen: 0 };
  let timer = 0;

  for (const child of first.children) {
    const copy = second.appendChild(child.cloneNode(true));
    for (const name of ["role", "tabindex", "aria-label"]) copy.removeAttribute(name);
  }
  const dots = [first, second].map(map => [...map.querySelectorAll("circle")]);
  const dotOf = new Map(dots[0].map(dot => [+dot.dataset.place, dot]));

  const said = value => value === null ? "\u2013" : (value * day.quantum).toFixed(day.digits);

  const valuesOf = (mode, of) => mode === "day"
    ? day[of][state.time].map(value => value === null ? null : value * day.quantum)
    : sensors.map(sensor => sensor[mode === "error" ? "mae" : "received"]);

  const paint = (circles, values) => {
    const near = new Set(sensors[state.chosen].near.map(([place]) => place));
    for (const dot of circles) {
      const place = +dot.dataset.place;
      const mark = place === state.chosen ? " on" : near.has(place) ? " near" : "";
      dot.setAttribute("class", `q${level(values[place], scales[state.mode], 9)}${mark}`);
    }
  };

  const link = map => {
    const end = dotOf.get(state.chosen);
    const near = end ? sensors[state.chosen].near.filter(([place]) => dotOf.has(place)) : [];
    const most = Math.max(...near.map(([, weight]) => weight));
    const links = map.querySelector(".links");
    links.replaceChildren();
    for (const [place, weight] of near) {
      const start = dotOf.get(place);
      element(links, "line", { x1: start.getAttribute("cx"), y1: start.getAttribute("cy"),
        x2: end.getAttribute("cx"), y2: end.getAttribute("cy"), "stroke-width": 1 + 5 * weight / most });
    }
  };

  const [left, top, wide, high] = byId("panel").querySelector("svg").dataset.box.split(" ").map(Number);
  const curve = values => {
    let path = "", pen = "M";
    values.forEach((value, k) => {
      if (value !== null) {
        const height = (value * day.quantum - day.span[0]) / (day.span[1] - day.span[0]);
        path += `${pen}${(left + wide * day.at[k] / 1000).toFixed(1)} ${(top + high * (1 - height)).toFixed(1)}`;
      }
      pen = value === null ? "M" : "L";
    });
    return path;
  };

  const drawPanel = () => {
    const sensor = sensors[state.chosen];
    byId("sensor").value = state.chosen;
    byId("name").textContent = sensor.id;
    const facts = sensor.mae === null ? ["no valid target"]
      : [`MAE ${sensor.mae.toFixed(2)} ${unit}, number ${state.chosen + 1} of ${sensors.length} from the worst`];
    if (sensor.received !== null) facts.push(`all sensors together give it an attention weight of ${sensor.received.toFixed(2)}`);
    if (state.mode === "day") {
      const [truth, forecast] = ["truth", "forecast"].map(of => said(day[of][state.time][state.chosen]));
      facts.push(`at ${day.times[state.time]} it read ${truth}, and the forecast was ${forecast} ${unit}`);
    }
    byId("facts").textContent = `${facts.join("; ")}.`;
    byId("near").replaceChildren();
    for (const [place, weight, km] of sensor.near) {
      element(byId("near"), "li", {}, `${sensors[place].id}: weight ${(100 * weight).toFixed(1)} %, ${km} km away`);
    }
    for (const of of ["truth", "forecast"]) {
      byId("panel").querySelector(`path.${of}`).setAttribute("d", curve(day[of].map(row => row[state.chosen])));
    }
    const now = state.mode === "day" ? `M${left + wide * day.at[state.time] / 1000} ${top}v${high}` : "";
    byId("panel").querySelector("path.now").setAttribute("d", now);
  };

  const drawTime = () => {
    byId("slider").hidden = second.parentElement.hidden = state.mode !== "day";
    if (state.mode !== "day") return;
    const [truth, forecast] = [day.truth[state.time], day.forecast[state.time]];
    const known = truth.map((value, k) => [value, forecast[k]]).filter(([value]) => value !== null);
    const text = known.length ? `mean reading ${said(mean(known.map(([value]) => value)))}, `
      + `mean forecast ${said(mean(known.map(([, value]) => value)))}, `
      + `MAE ${(day.quantum * mean(known.map(([value, other]) => Math.abs(value - other)))).toFixed(2)} ${unit}`
      : "no reading";
    byId("time").value = state.time;
    byId("time").setAttribute("aria-valuetext", `${day.times[state.time]}, ${text}`);
    byId("at").textContent = `${day.times[state.time]}: ${text}`;
    paint(dots[1], valuesOf("day", "forecast"));
    link(second);
  };

  const draw = () => {
    byId("map").dataset.mode = state.mode;
    byId("caption").textContent = captions[state.mode];
    const ends = scales[state.mode] ? scales[state.mode].ends : ["\u2013", "\u2013"];
    [byId("low").textContent, byId("high").textContent] = ends;
    paint(dots[0], valuesOf(state.mode, "truth"));
    link(first);
    const reached = dotOf.get(state.chosen) || dots[0].at(-1); // a sensor that is not on the map has no dot
    for (const dot of dots[0]) {
      dot.setAttribute("tabindex", dot === reached ? 0 : -1);
      dot.setAttribute("aria-selected", +dot.dataset.place === state.chosen);
    }
    drawTime();
    drawPanel();
  };
  const set = change => { Object.assign(state, change); draw(); };

  for (const map of [first, second]) {
    for (const name of ["pointermove", "click"]) {
      map.addEventListener(name, event => {
        const found = nearest(map, event, dots[0], 30), chosen = found ? +found.dataset.place : state.chosen;
        if (chosen !== state.chosen) set({ chosen });
      });
    }
  }
  first.addEventListener("focusin", event => {
    const chosen = +event.target.dataset.place;
    if (chosen !== state.chosen) set({ chosen });
  });
  const directions = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  first.addEventListener("keydown", event => {
    const toward = directions[event.key];
    if (!toward) return;
    event.preventDefault();
    const at = dot => [+dot.getAttribute("cx"), +dot.getAttribute("cy")];
    const from = at(event.target);
    let best = null, least = Infinity;
    for (const dot of dots[0]) {
      const [x, y] = at(dot).map((value, k) => value - from[k]);
      const along = x * toward[0] + y * toward[1], across = Math.abs(x * toward[1]) + Math.abs(y * toward[0]);
      if (along > 0 && along >= across && along + 2 * across < least) [best, least] = [dot, along + 2 * across];
    }
    if (best) best.focus();
  });

  for (const radio of document.querySelectorAll("input[name=mode]")) {
    radio.addEventListener("change", () => set({ mode: radio.value }));
  }
  byId("sensor").addEventListener("change", event => set({ chosen: +event.target.value }));
  const stop = () => { clearInterval(timer); timer = 0; byId("play").textContent = "Play"; };
  byId("time").addEventListener("input", event => { stop(); set({ time: +event.target.value }); });
  byId("play").addEventListener("click", () => {
    if (timer) return stop();
    byId("play").textContent = "Pause";
    timer = setInterval(() => set({ time: (state.time + 1) % day.times.length }), 150);
  });
  document.documentElement.classList.add("script");
  draw();
})();
