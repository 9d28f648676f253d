"""Run directories as a page in the browser, and as one HTML file. Reads run directories only, and never writes into
one but `report.html`."""
