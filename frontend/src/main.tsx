import { render } from "preact";
import { App } from "./app";
import { followAddress } from "./navigation";
import "./styles/all.css";
import { followTheme } from "./theme";

followAddress();
followTheme();
render(<App />, document.getElementById("vario")!);
