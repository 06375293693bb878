// The charts, drawn from the tables beside them.
import { isDark } from "./scheme.js";
import { exact } from "./times.js";

const drawn = new Map();

const colour = (light, dark) => isDark() ? dark : light;

function read(figure) {
  const columns = [[], [], [], [], [], [], [], []];
  for (const row of figure.querySelectorAll("tbody tr")) {
    columns[0].push(Number(row.dataset.at) / 1000);
    row.dataset.row.split(" ").forEach((value, index) => columns[index + 1].push(value === "-" ? null : Number(value)));
  }
  return columns;
}

function plot(place, series, data, unit) {
  const text = colour("#4d5a69", "#9fb0c2"), line = colour("#e1e6ed", "#222c37");
  const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line } };
  const width = Math.max(place.clientWidth, 200);
  const bars = uPlot.paths.bars({ size: [0.8, 40] });
  return new uPlot({
    width, height: 150, legend: { show: false }, cursor: { drag: { x: false, y: false } },
    axes: [{ ...axis, values: (_, ticks) => ticks.map(clock) }, { ...axis, size: 66, values: (_, ticks) => ticks.map(unit) }],
    series: [{}, ...series.map(([label, stroke, isBar]) => ({ label, stroke, fill: isBar ? stroke : undefined, width: isBar ? 0 : 2, paths: isBar ? bars : undefined, points: { show: !isBar, size: 4 } }))],
  }, data, place);
}

const clock = (seconds) => exact(seconds * 1000).slice(11, 16);
const duration = (ms) => ms < 1000 ? `${ms} ms` : ms < 60000 ? `${ms / 1000} s` : `${Math.round(ms / 6000) / 10} m`;

export function charts() {
  if (typeof uPlot === "undefined") return;
  for (const figure of document.querySelectorAll("[data-chart]")) {
    const columns = read(figure);
    const [at, completed, failed, other, waited, , ran] = columns;
    const ended = completed.map((count, index) => count + failed[index] + other[index]);
    const data = [[at, ended, failed.map((count, index) => count + other[index]), failed], [at, waited, ran]];
    const known = drawn.get(figure);
    if (known) {
      known.forEach((chart, index) => chart.setData(data[index]));
      continue;
    }
    const places = figure.querySelectorAll(".plot");
    for (const place of places) place.setAttribute("aria-hidden", "true");
    drawn.set(figure, [
      plot(places[0], [["completed", colour("#2b9a58", "#3aa868"), true], ["other", colour("#c98a1b", "#d9a441"), true], ["failed", colour("#cf3f3c", "#e0635c"), true]], data[0], String),
      plot(places[1], [["waited", colour("#8456c4", "#b08ae6"), false], ["ran", colour("#2f6fd6", "#5d9bf5"), false]], data[1], duration),
    ]);
  }
}

addEventListener("resize", () => {
  for (const plots of drawn.values()) {
    for (const chart of plots) chart.setSize({ width: Math.max(chart.root.parentElement.clientWidth, 200), height: 150 });
  }
});
