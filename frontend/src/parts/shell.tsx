/** The frame around every screen: header, tabs and live indicator. */

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { RunHome } from "../api";
import { KEYS, useKeys } from "../keys";
import { isLive } from "../live";
import { go, link, toList, useView } from "../navigation";
import { askAgain, isGone, isReport } from "../server";
import { alertsText, countAlerts, mostUrgent } from "../severity";
import { SeverityIcon } from "./severity-icon";
import { showTour } from "./tour";
import { useStore } from "../store";
import { switchTheme, useDark } from "../theme";
import { SCREENS, type Screen } from "../view";

export const TITLES: Record<Screen, string> = {
  home: "Home",
  series: "Series",
  changes: "What changed",
  alerts: "Alerts",
  ranks: "Ranks",
  compare: "Compare",
  model: "Model",
  settings: "Settings",
  figures: "Figures",
  precision: "Precision",
};

/** Screens with a first heading of their own. */
const OWN_HEADS = new Set<Screen>(["home", "compare"]);
const REPORT_SCREENS: readonly Screen[] = ["home", "series", "alerts"];

export function Shell(props: { home: RunHome | null; children: ComponentChildren }) {
  const view = useView();
  const gone = useStore(isGone);
  const [isKeysOpen, showKeys] = useState(false);
  const waitingG = useRef(false);
  const hidden = new Set<Screen>();
  if (!props.home?.num_attachments) hidden.add("figures");
  if (!props.home?.has_precision) hidden.add("precision");
  hidden.delete(view.screen);
  const shown = isReport() ? REPORT_SCREENS : SCREENS.filter((screen) => !hidden.has(screen));
  useKeys((key) => {
    if (key === "?") return (showKeys(true), true);
    if (key === "t") return (switchTheme(), true);
    if (key === "/") return focusSearch();
    if (waitingG.current && key === "r" && !isReport()) return (go(toList()), (waitingG.current = false), true);
    waitingG.current = key === "g";
    const screen = view.run ? shown[Number(key) - 1] : undefined;
    if (screen) return (go({ screen, first: null, last: null }), true);
  });
  return (
    <>
      <a class="skip" href="#content">
        Skip to content
      </a>
      <header class="top">
        <Head home={props.home} onKeys={() => showKeys(true)} />
        {view.run && <Tabs shown={shown} home={props.home} />}
        {gone && (
          <div class="banner" role="alert">
            The server does not respond. Is <code>vario serve</code> still running? This page may be out of date.
            <button type="button" onClick={() => void askAgain()}>
              Try again
            </button>
          </div>
        )}
      </header>
      <main class="page" id="content" tabIndex={-1}>
        {view.run && (!props.home || !OWN_HEADS.has(view.screen)) && (
          <h1 class="only-read">
            {props.home?.name ?? view.run}: {TITLES[view.screen]}
          </h1>
        )}
        {props.children}
      </main>
      {isKeysOpen && <Keys onClose={() => showKeys(false)} />}
    </>
  );
}

function Head(props: { home: RunHome | null; onKeys: () => void }) {
  const view = useView();
  const dark = useDark();
  const live = useStore(isLive);
  const toRuns = link(toList());
  return (
    <div class="top-row">
      <a class="brand" {...(isReport() ? {} : toRuns)} aria-label={isReport() ? "vario" : "vario: all runs"}>
        <svg viewBox="0 0 32 32" aria-hidden="true">
          <path
            d="M5.500 20.500A11.500 11.500 0 1 1 26.500 20.500"
            fill="none"
            stroke="var(--accent)"
            stroke-width="3"
            stroke-linecap="round"
          />
          <path d="M16 18.500 22.500 8.500" stroke="currentColor" stroke-width="3" stroke-linecap="round" />
          <circle cx="16" cy="18.500" r="3" fill="currentColor" />
        </svg>
        <span>vario</span>
      </a>
      <nav class="path" aria-label="Place">
        {!isReport() && view.run && (
          <>
            <a class="hide-small" {...toRuns}>
              Runs
            </a>
            <span aria-hidden="true" class="hide-small">
              /
            </span>
          </>
        )}
        {view.run && <b>{props.home?.name ?? (view.run === "." ? "" : view.run)}</b>}
      </nav>
      <div class="top-side">
        {!isReport() && (
          <span
            class={`live ${live ? "is-on" : ""}`}
            role="status"
            title={live ? "Live: this page updates itself" : "Not receiving updates"}
          >
            <i aria-hidden="true" />
            {live ? "live" : ""}
          </span>
        )}
        <button
          type="button"
          class="icon-button"
          aria-label={dark ? "Use light colours" : "Use dark colours"}
          title="Light or dark (t)"
          onClick={switchTheme}
        >
          <svg viewBox="0 0 20 20" aria-hidden="true">
            {dark ? (
              <path d="M10 3v1M10 16v1M3 10h1M16 10h1M5 5l.7.7M14.300 14.300l.7.7M5 15l.7-.7M14.300 5.700l.7-.7M13 10a3 3 0 1 1-6 0 3 3 0 0 1 6 0z" />
            ) : (
              <path d="M16 12.500A7 7 0 0 1 7.500 4 7 7 0 1 0 16 12.500z" />
            )}
          </svg>
        </button>
        <button type="button" class="icon-button" aria-label="Keys" title="Keys (?)" onClick={props.onKeys}>
          ?
        </button>
      </div>
    </div>
  );
}

function Tabs(props: { shown: readonly Screen[]; home: RunHome | null }) {
  const view = useView();
  const incidents = props.home?.incidents ?? [];
  const severity = mostUrgent(incidents)?.severity ?? "note";
  const { alerts } = countAlerts(incidents);
  const box = useRef<HTMLElement>(null);
  // On a phone not all tabs fit: scroll the current one into view.
  useEffect(() => {
    const shown = box.current?.querySelector<HTMLElement>("[aria-current]");
    if (shown) box.current!.scrollLeft = shown.offsetLeft - box.current!.clientWidth / 2 + shown.offsetWidth / 2;
  }, [view.screen]);
  return (
    <nav class="tabs" aria-label="Screens" ref={box}>
      {props.shown.map((screen) => (
        <a
          key={screen}
          {...link({ screen, first: null, last: null })}
          aria-current={view.screen === screen ? "page" : undefined}
        >
          {TITLES[screen]}
          {screen === "alerts" && alerts > 0 && (
            <em class={`is-${severity}`} title={alertsText(incidents)}>
              <SeverityIcon severity={severity} />
              {alerts}
            </em>
          )}
        </a>
      ))}
    </nav>
  );
}

function Keys(props: { onClose: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog ref={dialog} onClose={props.onClose} aria-labelledby="keys-title">
      <h2 id="keys-title">Keys</h2>
      <dl class="keys">
        {KEYS.map(([key, text]) => (
          <>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{text}</dd>
          </>
        ))}
      </dl>
      <div class="controls">
        <button type="button" class="button" onClick={() => dialog.current?.close()}>
          Close
        </button>
        {!isReport() && (
          <button type="button" class="link" onClick={() => (showTour(), dialog.current?.close())}>
            Show the tour of the home screen
          </button>
        )}
      </div>
    </dialog>
  );
}

function focusSearch(): boolean {
  const search = document.querySelector<HTMLInputElement>("[data-search]");
  search?.focus();
  search?.select();
  return search !== null;
}
