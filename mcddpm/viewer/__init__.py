"""`mcddpm view`: results in a browser. `results` reads them, `queue` makes them, `app` serves the page."""
