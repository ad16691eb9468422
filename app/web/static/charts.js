"use strict";
/* Draws the curves of a model's page from its series, and fetches them again now and then.
   The numbers are in the page's tables as well: nothing here is needed to read them. */
(() => {
  const EVERY = 30000, HEIGHT = 180, FLOOR = 1e-12;
  const charts = document.getElementById("charts");
  if (!charts || typeof uPlot === "undefined") return;
  const state = document.getElementById("charts-state");
  const cursors = uPlot.sync("model");
  const drawn = new Map();
  let last = null;

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const isKnown = (value) => value !== null && value !== undefined;
  const percent = (value, digits) => (100 * value).toFixed(digits) + " %";
  const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
  const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
  const pad = (value) => String(value).padStart(2, "0");
  const months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

  function moment(seconds) {
    const at = new Date(1000 * seconds);
    return `${at.getUTCDate()} ${months[at.getUTCMonth()]} ${pad(at.getUTCHours())}:${pad(at.getUTCMinutes())}`;
  }

  function times(_, splits, __, ___, step) {
    let day = null;
    return splits.map((seconds) => {
      const at = new Date(1000 * seconds), here = at.getUTCDate();
      const date = `${here} ${months[at.getUTCMonth()]}`;
      if (step >= 86400) return date;
      const minute = `${pad(at.getUTCHours())}:${pad(at.getUTCMinutes())}`;
      const time = step < 60 ? `${minute}:${pad(at.getUTCSeconds())}` : minute;
      const is_new = day !== null && day !== here;
      const first = day === null && at.getUTCHours() === 0 && at.getUTCMinutes() === 0;
      day = here;
      return is_new || first ? `${time}\n${date}` : time;
    });
  }

  function percents(_, splits) {
    const step = splits.length > 1 ? splits[1] - splits[0] : 1;
    const digits = step >= 0.0099 ? 0 : step >= 0.00099 ? 1 : 2;
    return splits.map((value) => percent(value, digits));
  }

  function powers(_, splits) {
    return splits.map((value) => {
      if (!isKnown(value)) return "";
      const power = Math.round(Math.log10(value));
      return power >= -2 ? String(Number(value.toPrecision(1))) : `1e${power}`;
    });
  }

  /* Everything known in some columns, with a little air, and no wider than a share can be. */
  function shares(columns, lines) {
    const known = columns.flat().concat(lines).filter(isKnown);
    const low = Math.min(...known), high = Math.max(...known);
    const air = Math.max(0.12 * (high - low), 0.005);
    return known.length ? [Math.max(0, low - air), Math.min(1, high + air)] : [0, 1];
  }

  const constant = (value, data) => data.at.map(() => value);
  const tidy = (value) => percent(value, Math.abs(value) >= 0.01 ? 1 : 2);

  function band(data, own, line) {
    return {
      columns: [own.lower, own.upper, own.estimate, constant(line, data)],
      band: true,
      range: shares([own.lower, own.upper, own.estimate], [line]),
      ticks: percents,
      read: (i) => `${tidy(own.estimate[i])} [${tidy(own.lower[i])}, ${tidy(own.upper[i])}]`,
      known: own.estimate,
    };
  }

  const KINDS = {
    label: (data, index) => {
      const own = data.labels[index];
      return band(data, { lower: own.lower, upper: own.upper, estimate: own.q }, own.p);
    },
    accuracy: (data) => band(data, data.accuracy, data.accuracy.reference),
    evidence: (data) => {
      const { statistic, threshold } = data.evidence;
      const floored = statistic.map((value) => (isKnown(value) ? Math.max(0, value) : null));
      const top = Math.max(1, ...floored.filter(isKnown), ...threshold.filter(isKnown));
      return {
        columns: [floored, threshold],
        range: [0, 1.1 * top],
        ticks: (_, splits) => splits.map((value) => String(Number(value.toFixed(1)))),
        read: (i) => `${statistic[i].toFixed(1)} of ${threshold[i].toFixed(1)}`,
        known: statistic,
      };
    },
    p_value: (data) => {
      const shown = data.p_value.map((value) => (isKnown(value) ? Math.max(FLOOR, value) : null));
      const least = Math.min(data.shifted_below / 10, ...shown.filter(isKnown));
      return {
        columns: [shown, constant(data.shifted_below, data)],
        range: [Math.pow(10, Math.floor(Math.log10(least))), 1],
        logarithmic: true,
        ticks: powers,
        read: (i) => (data.p_value[i] < FLOOR ? "below 1e-12" : String(Number(data.p_value[i].toPrecision(2)))),
        known: data.p_value,
      };
    },
    n: (data) => ({
      columns: [data.n],
      fill: true,
      range: [0, 1.1 * Math.max(1, ...data.n.filter(isKnown))],
      ticks: (_, splits) => splits.map((value) => (Number.isInteger(value) ? short.format(value) : "")),
      read: (i) => whole.format(data.n[i]),
      known: data.n,
    }),
  };

  function series(what) {
    const accent = colour("--accent"), line = { stroke: accent, width: 1.6, points: { show: false } };
    // A single evaluation between two gaps is no line: it must be seen as a point.
    const main = { ...line, points: { show: (u, s, from, to) => lonely(u.data[s], from, to), size: 5, fill: accent } };
    const edge = { stroke: "transparent", width: 0, points: { show: false } };
    const dashes = { stroke: colour("--ink"), width: 1.2, dash: [5, 4], points: { show: false } };
    if (what.band) return [{}, edge, edge, main, dashes];
    if (what.fill) return [{}, { ...main, fill: colour("--info-bg") }];
    return [{}, main, dashes];
  }

  function lonely(column, from, to) {
    for (let i = from; i <= to; i++)
      if (isKnown(column[i]) && !isKnown(column[i - 1]) && !isKnown(column[i + 1])) return true;
    return false;
  }

  function options(place, what, data, value) {
    const quiet = colour("--quiet"), grid = { stroke: colour("--line"), width: 1 };
    const axis = { stroke: quiet, grid, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    return {
      width: Math.max(200, place.clientWidth),
      height: HEIGHT,
      tzDate: (seconds) => uPlot.tzDate(new Date(1000 * seconds), "Etc/UTC"),
      padding: [8, 12, 0, 0],
      legend: { show: false },
      cursor: { sync: { key: cursors.key }, drag: { x: false, y: false }, points: { size: 6 }, y: false },
      scales: {
        x: { range: () => [data.start, data.end] },
        y: { range: () => what.range, distr: what.logarithmic ? 3 : 1 },
      },
      axes: [
        { ...axis, values: times, space: 64, size: 42 },
        { ...axis, values: what.ticks, size: 58, space: 32, ...(what.logarithmic && { filter: decades, grid: { ...grid, filter: decades } }) },
      ],
      series: series(what),
      bands: what.band ? [{ series: [2, 1], fill: translucent(colour("--band")) }] : [],
      hooks: { setCursor: [(u) => value(isKnown(u.cursor.idx) ? u.cursor.idx : null)] },
    };
  }

  const translucent = (hex) => `${hex}80`;

  function decades(u, splits) {
    const powers = splits.map((value) => Math.log10(value));
    const whole = powers.filter((power) => Math.abs(power - Math.round(power)) < 1e-9);
    const every = Math.ceil(whole.length / 5);
    return splits.map((value, i) => {
      const power = Math.round(powers[i]);
      return Math.abs(powers[i] - power) < 1e-9 && power % every === 0 ? value : null;
    });
  }

  function note(place, words) {
    drawn.get(place)?.chart.destroy();
    drawn.delete(place);
    const text = document.createElement("p");
    text.className = "note";
    text.textContent = words;
    place.replaceChildren(text);
  }

  function draw(place, data) {
    const what = KINDS[place.dataset.chart](data, Number(place.dataset.index));
    const caption = place.parentElement.querySelector(".value");
    const newest = what.known.findLastIndex(isKnown);
    if (newest < 0) {
      caption.textContent = "";
      note(place, data.at.length ? "Not known in this span" : "No evaluations in this span yet");
      return;
    }
    const value = (i) => {
      const at = i === null || !isKnown(what.known[i]) ? newest : i;
      caption.textContent = `${what.read(at)} at ${moment(data.at[at])}`;
    };
    const columns = [data.at, ...what.columns];
    const there = drawn.get(place);
    if (there) {
      there.update(what, data, value);
      there.chart.setData(columns);
    } else {
      drawn.set(place, made(place, what, data, value, columns));
    }
    value(null);
  }

  /* One chart for as long as the page is open: new data must not make it flicker. */
  function made(place, what, data, value, columns) {
    const now = { what, data, value };
    const own = options(place, what, data, (i) => now.value(i));
    own.scales.x.range = () => [now.data.start, now.data.end];
    own.scales.y.range = () => now.what.range;
    place.replaceChildren();
    const chart = new uPlot(own, columns, place);
    return { chart, update: (...fresh) => ([now.what, now.data, now.value] = fresh) };
  }

  const places = () => charts.querySelectorAll("[data-chart]");

  async function refresh() {
    try {
      const answer = await fetch(charts.dataset.series, { headers: { accept: "application/json" } });
      if (answer.redirected) return location.reload();
      if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
      last = await answer.json();
      for (const place of places()) draw(place, last);
      charts.classList.remove("stale");
      state.textContent = "";
    } catch (error) {
      charts.classList.add("stale");
      state.textContent = `The curves could not be brought up to date (${error.message}). They are tried again.`;
    }
  }

  function redraw() {
    if (!last) return;
    for (const { chart } of drawn.values()) chart.destroy();
    drawn.clear();
    for (const place of places()) draw(place, last);
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  new ResizeObserver(() => {
    for (const [place, { chart }] of drawn)
      if (chart.width !== Math.max(200, place.clientWidth))
        chart.setSize({ width: Math.max(200, place.clientWidth), height: HEIGHT });
  }).observe(charts);

  /* What is renewed every few seconds must not lose the place that somebody has scrolled to. */
  const scrolled = new Map();
  document.addEventListener("htmx:beforeSwap", () => {
    for (const one of document.querySelectorAll(".wide[id]")) scrolled.set(one.id, one.scrollLeft);
  });
  document.addEventListener("htmx:afterSwap", () => {
    for (const [id, left] of scrolled) document.getElementById(id)?.scrollTo({ left });
  });

  refresh();
  setInterval(() => document.hidden || refresh(), EVERY);
})();
