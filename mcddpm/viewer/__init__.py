"""`mcddpm view`: results in a browser. `results` reads them, `queue` makes them, `app` serves the page. It needs the
extra `view`: nothing here is loaded before it is asked for."""

__all__: list[str] = []
