/** A link to what the gallery of faults says about a rule. */

import type { ComponentChildren } from "preact";
import { isReport } from "../server";

export function galleryAddress(rule: string): string {
  return `gallery#${encodeURIComponent(rule)}`;
}

export function GalleryLink(props: { rule: string; children: ComponentChildren; class?: string }) {
  // A report is one file: the gallery is not in it.
  if (isReport()) return props.class ? null : <>{props.children}</>;
  return (
    <a class={props.class} href={galleryAddress(props.rule)} target="_blank" rel="noopener">
      {props.children}
    </a>
  );
}
