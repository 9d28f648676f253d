// Unpacks the chart library that an exported file carries with it, then draws.
"use strict";

document.addEventListener("DOMContentLoaded", async () => {
  const packed = document.getElementById("plotly");
  if (!packed || !packed.textContent || typeof DecompressionStream === "undefined") return;
  const bytes = Uint8Array.from(atob(packed.textContent), (letter) => letter.charCodeAt(0));
  const text = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).blob();
  const script = document.createElement("script");
  script.src = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
  script.addEventListener("load", drawCharts);
  document.head.append(script);
});
