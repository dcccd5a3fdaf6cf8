"""The one browser pool of the house: finding a browser, rendering untrusted HTML, sessions with trusted pages.

`find` chooses the executable, `fonts` holds the bundled fonts and the renderer's identity, `processes` ends whole
process trees, `page` is one hermetic page, `pool` shares a warm browser among threads. Importing any of them does not
import Playwright; that happens when a browser is first started.
"""
