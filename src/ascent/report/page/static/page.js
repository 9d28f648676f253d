// The page's own script: charts from the numbers in the page, keys, and what is new while a run trains.
// It makes no markup out of text: whatever a page shows was escaped by the server.
"use strict";

const COLOURS = ["#2f6fbb", "#c2571a", "#2a8a6a", "#8a5fb0", "#b8912a", "#a83d5b"];
const EVERY_MS = 4000;

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
// Plotly reads a little markup in names
const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

function traces(chart) {
  const hover = chart.unit === "%" ? "%{y:.1%}" : `%{y:.4~g} ${chart.unit}`;
  return chart.series.map((series, place) => {
    const colour = COLOURS[place % COLOURS.length];
    const trace = { name: plain(series.name), x: series.x, y: series.y, hovertemplate: hover, connectgaps: false };
    if (series.style === "bars") return { ...trace, type: "bar", marker: { color: colour } };
    const dots = series.style === "dots" || series.y.filter((y) => y !== null).length < 2;
    return {
      ...trace, type: "scatter", mode: dots ? "markers" : "lines",
      line: { color: colour, width: 1.8 }, marker: { color: colour, size: 8 },
    };
  });
}

function layout(chart, marks) {
  const ink = style("--ink-soft"), grid = style("--line");
  return {
    margin: { l: 54, r: 12, t: 8, b: 26 }, height: 200, showlegend: false,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink, size: 11, family: style("--sans") },
    barmode: "stack", bargap: 0.15, hovermode: "x unified", hoverlabel: { bgcolor: style("--paper"), font: { color: style("--ink") } },
    xaxis: { gridcolor: grid, zeroline: false, tickformat: "d", showspikes: true, spikemode: "across", spikethickness: 1, spikecolor: ink, spikedash: "dot" },
    yaxis: {
      gridcolor: grid, zeroline: false, rangemode: "tozero", tickformat: chart.unit === "%" ? ".2~%" : ",.3~r",
    },
    shapes: marks.map((x) => ({ type: "line", x0: x, x1: x, y0: 0, y1: 1, yref: "paper", line: { color: style("--bad"), width: 1, dash: "dot" } })),
  };
}

function legend(chart, plot) {
  const lines = plot.parentElement.querySelector(".lines");
  if (chart.series.length < 2) return;
  lines.replaceChildren(...chart.series.map((series, place) => {
    const line = document.createElement("span"), mark = document.createElement("i");
    mark.style.background = COLOURS[place % COLOURS.length];
    if (series.style === "dots") mark.className = "dot";
    line.append(mark, series.name);
    return line;
  }));
}

// Charts of a page are linked: what is zoomed or pointed at in one is in all.
function link(plots) {
  let busy = false;
  const others = (one, act) => {
    if (busy) return;
    busy = true;
    Promise.all(plots.filter((each) => each !== one).map(act)).finally(() => { busy = false; });
  };
  for (const plot of plots) {
    plot.on("plotly_relayout", (change) => {
      const range = change["xaxis.range[0]"] === undefined ? null : [change["xaxis.range[0]"], change["xaxis.range[1]"]];
      if (range) others(plot, (each) => Plotly.relayout(each, { "xaxis.range": range }));
      else if (change["xaxis.autorange"]) others(plot, (each) => Plotly.relayout(each, { "xaxis.autorange": true }));
    });
    plot.on("plotly_hover", (event) => others(plot, (each) => Plotly.Fx.hover(each, [{ xval: event.points[0].x, curveNumber: 0 }], ["xy"])));
    plot.on("plotly_unhover", () => others(plot, (each) => Plotly.Fx.unhover(each)));
    plot.on("plotly_click", (event) => {
      const steps = plot.closest("[data-steps]");
      if (steps) location.href = steps.dataset.steps + encodeURIComponent(event.points[0].x);
    });
  }
}

function drawCharts() {
  if (typeof Plotly === "undefined") return;
  const plots = [];
  for (const block of document.querySelectorAll("script.chart-data")) {
    const { charts, marks } = JSON.parse(block.textContent);
    for (const chart of charts) {
      const plot = document.querySelector(`[data-chart="${chart.id}"]`);
      Plotly.react(plot, traces(chart), layout(chart, marks), { displaylogo: false, displayModeBar: false, responsive: true });
      legend(chart, plot);
      plots.push(plot);
    }
  }
  link(plots);
}

function follow(selector) {
  const found = document.querySelector(selector);
  if (found) location.href = found.href;
}

function keys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog")) return;
  const search = document.querySelector("[data-search]");
  if (event.key === "ArrowRight" || event.key === "j") follow("a[rel=next]");
  else if (event.key === "ArrowLeft" || event.key === "k") follow("a[rel=prev]");
  else if (event.key === "u") follow("a[data-up]");
  else if (event.key === "g") follow("a[data-group]");
  else if (event.key === "/" && search) { event.preventDefault(); search.focus(); search.select(); }
  else if (event.key === "?") document.getElementById("keys")?.showModal();
}

// Pages with charts take in what is new; elsewhere a list under one's eyes stays until it is asked for.
async function reload() {
  const answer = await fetch(location.href);
  if (!answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  document.body.dataset.stamp = fresh.body.dataset.stamp;
  document.getElementById("main").replaceWith(fresh.getElementById("main"));
  document.getElementById("news").hidden = true;
  drawCharts();
}

async function look() {
  if (document.hidden) return;
  const answer = await fetch(document.body.dataset.state).catch(() => null);
  if (!answer || !answer.ok) return;
  const { stamp } = await answer.json();
  if (stamp === document.body.dataset.stamp) return;
  const atWork = document.querySelector("#main :focus, #main details[open]") || String(getSelection());
  if (document.querySelector(".chart-data, .progress, .empty") && !atWork) await reload();
  else document.getElementById("news").hidden = false;
}

document.addEventListener("DOMContentLoaded", () => {
  drawCharts();
  document.addEventListener("keydown", keys);
  document.addEventListener("click", (event) => {
    const opener = event.target.closest("[data-open]");
    if (opener) document.getElementById(opener.dataset.open).showModal();
    if (event.target.closest("[data-reload]")) reload();
  });
  if (document.body.dataset.state) setInterval(look, EVERY_MS);
});
